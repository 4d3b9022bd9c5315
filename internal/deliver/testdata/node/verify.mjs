// Verifies requests that the dispatcher sent with the libraries that receivers on Node
// use. Standard input is a JSON array of {name, secret, headers, body (base64), good};
// every fault is a line on standard error, and the exit code is 1 then.
//
// The libraries judge the timestamp by the clock: the requests are fresh.
import { readFileSync } from "node:fs";
import { Webhook as Standard } from "standardwebhooks";
import { Webhook as Svix } from "svix";

const requests = JSON.parse(readFileSync(0, "utf8"));
let faults = 0;
for (const { name, secret, headers, body, good } of requests) {
  const payload = Buffer.from(body, "base64");
  for (const [library, Webhook] of [["standardwebhooks", Standard], ["svix", Svix]]) {
    let refusal;
    try {
      new Webhook(secret).verify(payload.toString("utf8"), headers);
    } catch (e) {
      // What is signed need not be JSON: both libraries parse it once it is verified.
      if (!(e instanceof SyntaxError)) refusal = e;
    }
    if (good === (refusal !== undefined)) {
      console.error(`${library}, ${name}: ${refusal ?? "verifies, though it must not"}`);
      faults++;
    }
  }
}
console.log(`${requests.length} requests`);
process.exitCode = faults === 0 ? 0 : 1;
