"""A client of `openfate serve`: what is told counts with the next request, and is never lost.

    python examples/06_service.py

Fits a small model, starts the service in another process, and talks to it: a campaign appears that
training never saw, labels come later by row id, and the service is killed and started again.
"""

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from openfate.serving import Shop


def start(folder):
    """Start the service; the process and its address."""
    command = [sys.executable, "-m", "openfate", "serve", folder / "bundle", "--port", "0"]
    service = subprocess.Popen(
        [*map(str, command), "--observe-requests"], stderr=subprocess.PIPE, text=True
    )
    return service, service.stderr.readline().split()[1].rstrip("/")


def post(url, **told):
    """Send JSON, receive JSON."""
    request = urllib.request.Request(url, json.dumps(told).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def main():
    """Tell the story."""
    folder = Path(tempfile.mkdtemp())
    shop = Shop(seed=0, campaign_visits=400)
    shop.fit(folder / "bundle", 600)
    service, url = start(folder)

    visits = [shop.visit() for _ in range(400)]
    new = {"page": "home", "device": "laptop", "country": "it", "campaign": "campaign 1"}
    first = post(f"{url}/predict", row=new)["predictions"][0]
    print(f"before anything was said, unknown: {first['unknown']}")

    for at in range(0, 400, 100):  # predicted, and observed by their ids
        part = visits[at : at + 100]
        post(f"{url}/predict", rows=[row for row, _ in part], ids=list(range(at, at + 100)))
    labels = [bought for _, bought in visits]  # and the labels, when they come
    answer = post(f"{url}/labels", ids=list(range(400)), labels=labels)
    print("labels:", answer)
    while json.load(urllib.request.urlopen(f"{url}/health"))["position"] < answer["position"]:
        time.sleep(0.1)  # on disk already; a busy machine may take longer to learn from them

    told = post(f"{url}/predict", row=new, reasons=True)["predictions"][0]
    used, ignored = told["probabilities"][1], told["ignored"][1]
    print(f"a purchase: {used:.3f} with the new campaign, {ignored:.3f} without it")
    for reason in told["reasons"][:3]:
        print(f"  {reason['field']}={reason['value']}: {reason['effect']:+.2f}")

    service.kill()  # as a power cut would
    service.communicate()
    service, url = start(folder)
    again = post(f"{url}/predict", row=new)["predictions"][0]["probabilities"][1]
    print(f"the same after a crash: {abs(again - used) < 1e-9}")
    service.terminate()
    service.communicate()


if __name__ == "__main__":
    main()
