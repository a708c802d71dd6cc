"""No test leaves loopback."""

import socket
import subprocess
import sys

import pytest
import requests
from pytest_socket import SocketConnectBlockedError

OUTSIDE = "192.0.2.1"  # an address for documentation, which nobody has


@pytest.mark.filterwarnings("ignore:A test tried to use socket")
def test_other_machines_cannot_be_connected_to():
    with socket.socket() as connection, pytest.raises(SocketConnectBlockedError):
        connection.connect((OUTSIDE, 80))


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_no_name_is_looked_up(scheme, monkeypatch):
    asked = []
    lookup = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest: asked.append(host) or lookup(host, *rest))
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{scheme}://example.com", timeout=5)
    assert set(asked) == {"127.0.0.1"}


def test_a_process_started_by_a_test_is_refused_too():
    code = "import requests; requests.get('http://example.com', timeout=5)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode != 0 and "ProxyError" in ended.stderr
