// Runs the code on descriptor 5, called `name`, after `plain` made JavaScript of it, and writes the value of its last
// expression to descriptor 4 as JSON. A function: the names in here are not those of the code.
(name, plain) => {
  const fs = require('fs');
  const source = plain(fs.readFileSync(5, 'utf8'));
  let value;
  const given = process.argv.slice(1);
  const mark = given.indexOf('--');
  // Packages that were asked for.
  const packages = mark < 0 ? given : given.slice(0, mark);
  module.paths.push(...packages);
  process.argv = [process.argv[0], name, ...given.slice(packages.length + 1)];
  process.on('exit', () => {
    let text;
    try { text = JSON.stringify(value); } catch { return; }
    if (text === undefined || text === 'null') return;
    let data = Buffer.from(text);
    while (data.length > 0) data = data.subarray(fs.writeSync(4, data));
  });
  const keep = (result) => {
    if (result && typeof result.then === 'function') result.then((inner) => { value = inner; });
    else value = result;
  };
  try {
    keep(require('vm').runInThisContext(source, { filename: name }));
  } catch (error) {
    // Code with `import` or `await` at its top is a module.
    if (!(error instanceof SyntaxError) || !/\b(import|export|await)\b/.test(source)) throw error;
    if (packages.length > 0) {
      // A module without a file finds no packages by itself.
      const parents = packages.map((folder) => require('url').pathToFileURL(folder + '/../main.mjs').href);
      const hook = `export async function resolve(name, context, next) {
        for (const parentURL of ${JSON.stringify(parents)}) {
          try { return await next(name, { ...context, parentURL }); } catch {}
        }
        return next(name, context);
      }`;
      require('module').register('data:text/javascript,' + encodeURIComponent(hook));
    }
    import('data:text/javascript;base64,' + Buffer.from(source).toString('base64'));
  }
}
