// JSON of a value of JavaScript code: exact where JSON can be, else the text of `inspect` with the type; undefined for
// `undefined` and `null`. An expression, and part of the drivers of JavaScript. What the code may change is taken first.
(() => {
  const { inspect, types } = require('util');
  const { stringify } = JSON, { isArray } = Array, { isView } = ArrayBuffer, { isFinite, isSafeInteger, isInteger } = Number;
  const { getPrototypeOf, getOwnPropertySymbols, keys, is } = Object;
  const tag = Function.prototype.call.bind(Object.prototype.toString);
  // Levels of arrays and objects; deeper ones are text. Values in them all; more are beyond any limit.
  const MAX_DEPTH = 64, MAX_VALUES = 5_000_000;
  // A collection shows all that it has; an object of another class what Node.js shows of it.
  const DEEP = { depth: 10, maxArrayLength: 100_000, maxStringLength: 1_000_000 };

  const isPlain = (value) => {
    if (tag(value) !== '[object Object]') return false;
    const kind = getPrototypeOf(value);
    // An object of another context has another prototype.
    return kind === null || kind === Object.prototype || (getPrototypeOf(kind) === null && 'isPrototypeOf' in kind);
  };

  const clean = (text) => stringify(text.replace(/[\ud800-\udfff]/gu, '\ufffd'));
  const typed = (type, text) => `{"type":${clean(type)},"text":${clean(text)}}`;

  const text = (value, left = 0) => {
    let type = typeof value, text;
    try {
      if (type === 'object') type = String(value.constructor?.name || 'Object');
      const deep = isArray(value) || types.isMap(value) || types.isSet(value) || isView(value) || isPlain(value);
      text = inspect(value, { colors: false, ...(deep && left >= 0 ? DEEP : {}) });
    } catch (error) {
      try { text ??= inspect(value); } catch { text = 'an object that cannot be shown'; }
    }
    return typed(type, text);
  };

  const number = (value) => {
    if (!isFinite(value)) return undefined;
    if (is(value, -0)) return '-0.0';
    if (!isInteger(value) || isSafeInteger(value)) return String(value);
    // All digits, or visibly no integer.
    return value >= -(2 ** 63) && value < 2 ** 64 ? BigInt(value).toString() : value.toExponential();
  };

  return (whole) => {
    let left = MAX_VALUES;
    const open = new Set(), UNFIT = {};
    const json = (value, depth) => {
      if (--left < 0) throw UNFIT;
      switch (typeof value) {
        case 'boolean': return String(value);
        case 'number': return number(value) ?? text(value);
        case 'bigint': return String(value);
        // A surrogate without its other half.
        case 'string': return /[\ud800-\udfff]/u.test(value) ? typed('string', stringify(value)) : stringify(value);
        case 'object': if (value !== null) break; return 'null';
        default: return text(value);
      }
      if (depth >= MAX_DEPTH || open.has(value) || types.isProxy(value)) return text(value);
      const list = isArray(value);
      if (!list && !isPlain(value)) return text(value);
      const names = keys(value);
      if (getOwnPropertySymbols(value).length > 0 || (list && names.length !== value.length)) return text(value);
      // A member whose name JSON cannot hold.
      if (!list && names.some((name) => /[\ud800-\udfff]/u.test(name))) return text(value);
      open.add(value);
      try {
        const parts = names.map((name) => (list ? '' : stringify(name) + ':') + json(value[name], depth + 1));
        return list ? `[${parts.join()}]` : `{${parts.join()}}`;
      } catch (error) {
        if (error === UNFIT) throw error;
        // A member that throws.
        return text(value);
      } finally {
        open.delete(value);
      }
    };
    if (whole === undefined || whole === null) return undefined;
    try {
      return json(whole, 0);
    } catch {
      // Too many values.
      return text(whole, left);
    }
  };
})()
