// The index of the search: {records: [{url, content}, …], folder} in.

import { readFileSync } from "fs";
import { close, createIndex } from "pagefind";

const { records, folder } = JSON.parse(readFileSync(0));
const { index } = await createIndex();
for (const record of records) {
  const { errors } = await index.addHTMLFile(record);
  if (errors.length) throw new Error(`${record.url}: ${errors}`);
}
const { errors } = await index.writeFiles({ outputPath: folder });
if (errors.length) throw new Error(errors);
await close();
