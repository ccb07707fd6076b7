#!/usr/bin/env python3
"""Loads a running `ruvllm serve` as clients would, and tells rates and waits.

    ruvllm serve --model smollm2:135m --parallel 16 &
    benches/serve_load.py --clients 1,4,8,16                     128 tokens in, 64 out, each client one after the other
    benches/serve_load.py --clients 4 --intrude 3000             while a prompt of 3,000 tokens is read beside them

Prompts are passages of --text from random places: nothing is cached. Answers go on past the model's end, so that
each has as many tokens as was asked for. Only Python's own library is used, and what was received is looked at when
all is over: the tool takes little of the machine that it measures.
"""

import argparse
import asyncio
import json
import random
import statistics
import time
import urllib.request


def post(url, path, body):
    data = json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


class Prompts:
    """Passages of a text, as tokens; each from a place of its own."""

    def __init__(self, url, path, model):
        text = open(path, encoding="utf-8").read(1 << 20)
        body = {"text": text} | ({"model": model} if model else {})
        self.tokens = post(url, "/tokenize", body)["tokens"]

    def take(self, n):
        at = random.randrange(len(self.tokens) - n)
        return self.tokens[at : at + n]


class Stream(asyncio.Protocol):
    """One answer: what came, and when."""

    def __init__(self, host, body):
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        self.request = f"{head}content-length: {len(data)}\r\nconnection: close\r\n\r\n".encode() + data
        self.pieces = []
        self.is_over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.started = time.perf_counter()
        transport.write(self.request)

    def data_received(self, data):
        self.pieces.append((time.perf_counter(), data))

    def connection_lost(self, _):
        if not self.is_over.done():
            self.is_over.set_result(None)

    def times(self):
        """Returns when each token came. Tokens that came in one piece came together."""
        if b" 200 " not in self.pieces[0][1][:32]:
            raise SystemExit(self.pieces[0][1].decode(errors="replace"))
        return [at for at, data in self.pieces for _ in range(data.count(b'"finish_reason":null'))]


async def answer(args, prompt, n_out):
    body = {"prompt": prompt, "max_tokens": n_out, "ignore_eos": True, "stream": True, "temperature": args.temperature}
    if args.model:
        body["model"] = args.model
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(lambda: Stream(args.host, body), args.host, args.port)
    await stream.is_over
    return stream


async def client(args, prompts, n, until):
    done = []
    for _ in range(n):
        if until is not None and until.is_set():
            break
        done.append(await answer(args, prompts.take(args.tokens_in), args.tokens_out))
    return done


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def summary(args, streams, took):
    first, gaps, n_tokens = [], [], 0
    for stream in streams:
        times = stream.times()
        first.append(times[0] - stream.started)
        gaps += [b - a for a, b in zip(times, times[1:])]
        n_tokens += len(times)
    ms = lambda value: round(1e3 * value, 1)
    return {
        "requests": len(streams),
        "tokens_per_s": round(n_tokens / took, 1),
        "ttft_ms": {"median": ms(statistics.median(first)), "p99": ms(percentile(first, 0.99))},
        "itl_ms": {"median": ms(statistics.median(gaps)), "p99": ms(percentile(gaps, 0.99))},
    }


async def measure(args, prompts, n_clients):
    start = time.perf_counter()
    done = await asyncio.gather(*(client(args, prompts, args.rounds, None) for _ in range(n_clients)))
    took = time.perf_counter() - start
    return summary(args, [stream for streams in done for stream in streams], took)


async def intrude(args, prompts, n_clients):
    """Answers of clients while one long prompt after the other is read; gaps count while it is."""
    over, windows = asyncio.Event(), []

    async def intruder():
        for _ in range(args.rounds):
            await asyncio.sleep(0.5)
            stream = await answer(args, prompts.take(args.intrude), 1)
            windows.append((stream.started, stream.times()[0]))
        over.set()

    clients = [client(args, prompts, 1 << 20, over) for _ in range(n_clients)]
    done, _ = await asyncio.gather(asyncio.gather(*clients), intruder())
    inside, outside = [], []
    for stream in (stream for streams in done for stream in streams):
        times = stream.times()
        for a, b in zip(times, times[1:]):
            is_inside = any(a < end and b > begin for begin, end in windows)
            (inside if is_inside else outside).append(b - a)
    ms = lambda value: round(1e3 * value, 1)
    return {
        "prompt_s": [round(end - begin, 2) for begin, end in windows],
        "itl_ms": {"median": ms(statistics.median(inside)), "p99": ms(percentile(inside, 0.99))},
        "itl_apart_ms": {"median": ms(statistics.median(outside)), "p99": ms(percentile(outside, 0.99))},
        "p99_over_median": round(percentile(inside, 0.99) / statistics.median(inside), 2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--model", help="which one, where several are served")
    parser.add_argument("--text", required=True, help="a file to take passages from; some 100 kB")
    parser.add_argument("--clients", default="1,4,8,16", help="numbers of clients at once")
    parser.add_argument("--rounds", type=int, default=4, help="requests of each client")
    parser.add_argument("--tokens-in", type=int, default=128)
    parser.add_argument("--tokens-out", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--intrude", type=int, metavar="N", help="read prompts of N tokens beside the clients")
    args = parser.parse_args()
    prompts = Prompts(f"http://{args.host}:{args.port}", args.text, args.model)
    for n_clients in map(int, args.clients.split(",")):
        run = intrude if args.intrude else measure
        print(json.dumps({"clients": n_clients} | asyncio.run(run(args, prompts, n_clients))), flush=True)


if __name__ == "__main__":
    main()
