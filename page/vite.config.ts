import { defineConfig } from "vite";

const LICENCE = `/*! Contains Preact (MIT, (c) 2015-present Jason Miller). */`;

// The server embeds the built files and serves them at these names, so they have no hashes.
export default defineConfig({
  base: "/page/",
  publicDir: false,
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "inline" },
  build: {
    target: "es2022",
    assetsDir: "",
    modulePreload: false,
    cssCodeSplit: false,
    reportCompressedSize: false,
    rollupOptions: {
      output: { entryFileNames: "app.js", assetFileNames: "app.[ext]", banner: LICENCE },
    },
  },
});
