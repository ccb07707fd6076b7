"""prometheus-client reads what /metrics says."""

import json
import sys
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

HEADERS = {"authorization": "Bearer key-of-the-tests", "content-type": "application/json"}


def fetch(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(sys.argv[1] + path, data, HEADERS)) as reply:
        return reply.read().decode()


fetch("/v1/completions", {"prompt": "1, 2, 3,", "max_tokens": 8, "ignore_eos": True})
families = {family.name: family for family in text_string_to_metric_families(fetch("/metrics"))}
assert families["ruvllm_generated_tokens"].samples[0].value == 8, families["ruvllm_generated_tokens"]
for name in ["ttft", "inter_token", "queue", "step"]:
    family = families[f"ruvllm_{name}_seconds"]
    assert family.type == "histogram" and family.documentation, family
    buckets = [sample.value for sample in family.samples if sample.name.endswith("_bucket")]
    assert buckets == sorted(buckets) and buckets[-1] > 0, family
assert {sample.labels["state"] for sample in families["ruvllm_kv_blocks"].samples} == {"free", "cached", "in_use"}
assert families["ruvllm_requests_running"].type == "gauge"
print("ok")
