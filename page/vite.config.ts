import { defineConfig } from "vite";

// The server embeds the built files and serves them at these names, so they have no hashes.
export default defineConfig({
  base: "/page/",
  publicDir: false,
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
  build: {
    target: "es2022",
    assetsDir: "",
    modulePreload: false,
    cssCodeSplit: false,
    reportCompressedSize: false,
    rollupOptions: {
      output: { entryFileNames: "app.js", assetFileNames: "app.[ext]", inlineDynamicImports: true },
    },
  },
});
