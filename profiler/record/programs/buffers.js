// A service that makes a buffer of 8 MB for each request, fills it, and drops it.
//
// node buffers.js REQUESTS
let sum = 0;
for (let request = 0; request < Number(process.argv[2]); request++) {
  const buffer = Buffer.allocUnsafe(8 << 20);
  buffer.fill(request & 255);
  sum += buffer[request];
}
if (sum < 0) console.log(sum);
