#!/usr/bin/env python3
"""The web application of this example: serves debounce.html, and asks Tollgate before each search.

The browser talks to this program only. Page and API have one origin, so there is no CORS to set up,
and Tollgate stays on the loopback, out of reach of web pages.
"""

import http.server
import pathlib
import urllib.error
import urllib.parse
import urllib.request

TOLLGATE = "http://127.0.0.1:8080/v1/check?policy=search&key="
PAGE = pathlib.Path(__file__).with_name("debounce.html")
TEXT = "text/plain; charset=utf-8"


class Application(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        if url.path == "/":
            return self.reply(200, PAGE.read_text(), "text/html; charset=utf-8")
        if url.path != "/search":
            return self.reply(404, "no such page")
        client = urllib.parse.quote(self.client_address[0])
        try:
            urllib.request.urlopen(TOLLGATE + client, timeout=1).close()
        except urllib.error.HTTPError as refused:
            if refused.code != 429:
                return self.reply(502, f"Tollgate answered {refused.code}")
            wait = refused.headers.get("Retry-After")
            return self.reply(429, "too many searches", retry_after=wait)
        except OSError:
            pass  # Fail open: a search is served while Tollgate is down.
        query = urllib.parse.parse_qs(url.query).get("q", [""])[0]
        self.reply(200, f'"{query}": {len(query)} letters')

    def reply(self, status, text, content_type=TEXT, retry_after=None):
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if retry_after is not None:
            self.send_header("Retry-After", retry_after)
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    print("open http://127.0.0.1:8000/")
    http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Application).serve_forever()
