"""axe-core has no serious finding on any page of the site that `make docs` builds."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.accessibility import serious_findings

SITE = Path(__file__).parents[2] / "site"
PAGES = ("index.html", "results.html", "reference/configuration.html", "tutorials/vectors.html")
"""Pages that must exist; all are checked."""

pytestmark = pytest.mark.site


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture(scope="module")
def address():
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_no_page_has_a_serious_finding(address, open_page):
    pages = {str(file.relative_to(SITE)) for file in SITE.rglob("*.html")}
    assert pages > {*PAGES}, "run `make docs` first"
    found = {page: serious_findings(open_page(f"{address}/{page}")) for page in sorted(pages)}
    assert {page: findings for page, findings in found.items() if findings} == {}
