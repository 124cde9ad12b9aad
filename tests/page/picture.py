"""Takes the picture of the README: why a number is what it is, in the moment of a fold. `make picture` runs this."""

import os

from playwright.sync_api import expect

# Until the first shards of the demo are final, which is its lifetime and its cutoff.
FINAL_WITHIN_MS = 180_000


def test_a_fold_is_under_way(start, open_page):
    page = open_page(start("demo").origin, "#/counter/shop/orders")
    # A second fold, so that there is a tally before.
    for _ in range(2):
        expect(page.locator(".stem.final").first).to_be_visible(timeout=FINAL_WITHIN_MS)
        page.click("button:text-is('Fold now')")
        expect(page.locator(".stem.folding").first).to_be_visible()
        page.screenshot(path=f"{os.environ['SCREENSHOTS']}/fold.png")
        expect(page.locator(".stem.folding")).to_have_count(0)
