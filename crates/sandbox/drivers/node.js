// Runs the code on descriptor 5, called `name`, after `plain` made JavaScript of it, and writes the value of its last
// expression, which `describe` makes JSON of, to descriptor 4. A function: the names in here are not those of the code.
(name, plain, describe) => {
  const fs = require('fs'), vm = require('vm');
  const source = plain(fs.readFileSync(5, 'utf8'));
  let value;
  const given = process.argv.slice(1);
  const mark = given.indexOf('--');
  // Packages that were asked for.
  const packages = mark < 0 ? given : given.slice(0, mark);
  module.paths.push(...packages);
  process.argv = [process.argv[0], name, ...given.slice(packages.length + 1)];
  const from = Buffer.from.bind(Buffer), { writeSync } = fs;
  process.on('exit', () => {
    let data = from(describe(value) ?? '');
    while (data.length > 0) data = data.subarray(writeSync(4, data));
  });
  const keep = (result) => {
    // A promise that nothing resolves is the value itself.
    value = result;
    if (result && typeof result.then === 'function') result.then((inner) => { value = inner; });
  };

  // A module has no value: its last expression becomes what it exports. The parser says whether a text is one expression,
  // and whether the rest is whole. Undefined if the end is none.
  const exporting = () => {
    if (/\bexport\s+default\b/.test(source)) return undefined;
    const begins = [0];
    for (let at = 0; at < source.length; at++) if (source[at] === ';' || source[at] === '\n') begins.push(at + 1);
    for (const at of begins.reverse().slice(0, 1000)) {
      const rest = source.slice(at), before = source.slice(0, at).trimEnd();
      // A statement with another meaning than the expression, or the rest of the one before.
      if (/^\s*(\{|function\b|class\b|async\s+function\b|let\b|$)/.test(rest)) continue;
      if (/^\s*[([`+\-/]/.test(rest) && !/(^|;|\bimport\b[^\n]*['"])$/.test(before)) continue;
      for (const expression of [rest, rest.replace(/;\s*((\/\/[^\n]*|\/\*[^]*?\*\/)\s*)*$/, '')]) {
        try {
          new vm.Script(`(async () => (0, ${expression}\n))`);
        } catch {
          continue;
        }
        return `${source.slice(0, at)}export default (0, ${expression}\n);`;
      }
    }
  };
  const load = (text) => import('data:text/javascript;base64,' + from(`${text}\n//# sourceURL=${name}`).toString('base64'));

  try {
    keep(vm.runInThisContext(source, { filename: name }));
  } catch (error) {
    // Code with `import` or `await` at its top is a module.
    if (!(error instanceof SyntaxError) || !/\b(import|export|await)\b/.test(source)) throw error;
    if (packages.length > 0) {
      // A module without a file finds no packages by itself.
      const parents = packages.map((directory) => require('url').pathToFileURL(directory + '/../main.mjs').href);
      const hook = `export async function resolve(name, context, next) {
        for (const parentURL of ${JSON.stringify(parents)}) {
          try { return await next(name, { ...context, parentURL }); } catch {}
        }
        return next(name, context);
      }`;
      require('module').register('data:text/javascript,' + encodeURIComponent(hook));
    }
    const text = exporting();
    if (text === undefined) {
      load(source);
    } else {
      // Its last import tells that the module as a whole was parsed and begins to run.
      let runs = false;
      process.once('toolpost:begin', () => { runs = true; });
      load(`${text}\nimport "data:text/javascript,process.emit('toolpost:begin')";`).then(
        (found) => keep(found.default),
        (error) => {
          if (runs || !(error instanceof SyntaxError)) throw error;
          load(source);
        },
      );
    }
  }
}
