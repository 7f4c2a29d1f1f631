// The index of the search: {records: [{url, content}, …], folder} in.

import { mkdirSync, readFileSync, writeFileSync } from "fs";
import { dirname, join } from "path";
import { close, createIndex } from "pagefind";

const { records, folder } = JSON.parse(readFileSync(0));
const { index } = await createIndex();
for (const record of records) {
  const { errors } = await index.addHTMLFile(record);
  if (errors.length) throw new Error(`${record.url}: ${errors}`);
}
const { errors, files } = await index.getFiles(); // writeFiles once left half a file
if (errors.length) throw new Error(errors);
for (const { path, content } of files) {
  mkdirSync(dirname(join(folder, path)), { recursive: true });
  writeFileSync(join(folder, path), content);
}
await close();
