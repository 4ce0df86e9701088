"""Media types for tests of different kinds."""

from typing import Final

# Semel takes the first type of each, and a browser may take the last one.
TYPES_WITH_COMMAS: Final = (
    "text/plain;x=1,text/html",
    "text/plain;,text/html",
    "text/plain;\t,\ttext/html",
    "text/plain;charset=utf-8,text/html",
    'text/plain;x=",text/html',
    'text/plain;x="a",text/html',
    'text/plain;x=a"b",text/html',
    'text/plain;x="\\",text/html',
    "text/plain;x=',text/html",
    "TEXT/PLAIN;X=1,TEXT/HTML",
    "text/plain;x=1,text/css,text/html;charset=utf-8",
    "text/plain;x=1,image/svg+xml",
    "application/json;x=1,text/html",
    "application/octet-stream;x, text/html;charset=utf-8",
)
