"""Write the README's picture of a page: scripts/test_in_browser.sh --picture [report.json] [picture.png]"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from txl.report.page import write_page
from txl.report.record import read_report

ROOT = Path(__file__).parents[2]
SIZE = {"width": 1280, "height": 1100}
MOST_BYTES = 300_000


def main(argv: list[str]) -> None:
    """Draw a report.json, and take a picture of the page's upper part."""
    record = Path(argv[0]) if argv else ROOT / "runs" / "demo" / "report.json"
    picture = Path(argv[1]) if len(argv) > 1 else ROOT / "docs" / "pictures" / "report.png"
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        page_file = Path(folder) / "report.html"
        write_page(page_file, [read_report(record)])
        browser = started.chromium.launch(
            executable_path=chromium, args=["--disable-dev-shm-usage"]
        )
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(page_file.as_uri())
        page.wait_for_selector("body[data-ready]")
        page.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        page.screenshot(path=picture)
        browser.close()
    n_byte = picture.stat().st_size
    if n_byte > MOST_BYTES:
        sys.exit(
            f"{picture}: {n_byte:,} bytes, more than {MOST_BYTES:,}; take a smaller part of the page"
        )
    print(f"{picture}: {n_byte:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
