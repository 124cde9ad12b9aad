"""Takes the picture of the README: why a number is what it is, in the moment of a fold. `make picture` runs this."""

import os

from playwright.sync_api import expect

# The demo's shards with ids are final after two windows of a minute and a cutoff, and folds take them at once.
FOLDED_WITHIN_MS = 300_000


def test_a_fold_is_under_way(start, open_page):
    page = open_page(start("demo").origin, "#/counter/shop/orders")
    expect(page.locator(".tally-block")).to_be_visible(timeout=FOLDED_WITHIN_MS)
    page.wait_for_selector(".stem.folding", timeout=FOLDED_WITHIN_MS)
    page.screenshot(path=f"{os.environ['SCREENSHOTS']}/live.png")
