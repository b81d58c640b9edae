// Runs the code on descriptor 5 and writes what it returns to descriptor 4 as JSON: exact, or text with the type.
$argv = $_SERVER['argv'] = ['main.php', ...array_slice($argv, 1)];
$argc = $_SERVER['argc'] = count($argv);
(static function ($value) {
    if ($value === null) return;
    ini_set('serialize_precision', '-1');
    $text = static fn ($text) => json_encode(
        preg_match('//u', $text) ? $text : addcslashes($text, "\177..\377"),
        JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES,
    );
    $typed = static function ($inner) use ($text) {
        try {
            $shown = is_string($inner) || is_float($inner) ? var_export($inner, true) : print_r($inner, true);
        } catch (Throwable $error) {
            $shown = 'its text failed: ' . get_class($error);
        }
        return '{"type":' . $text(get_debug_type($inner)) . ',"text":' . $text(rtrim($shown)) . '}';
    };
    $left = 1000000;
    $json = static function ($inner, $depth) use (&$json, &$left, $text, $typed) {
        if ($inner === null || is_bool($inner) || is_int($inner)) return json_encode($inner);
        if (is_float($inner) && is_finite($inner)) return json_encode($inner, JSON_PRESERVE_ZERO_FRACTION);
        if (is_string($inner) && preg_match('//u', $inner)) return $text($inner);
        $is_object = is_object($inner) && get_class($inner) === 'stdClass';
        if (!is_array($inner) && !$is_object || $depth >= 64) return $typed($inner);
        $items = (array) $inner;
        if (($left -= count($items) + 1) < 0) return '{"type":"array","text":"more than a million values"}';
        $is_list = !$is_object && array_keys($items) === array_keys(array_keys($items));
        $parts = [];
        foreach ($items as $name => $item) {
            if (!preg_match('//u', (string) $name)) return $typed($inner);
            $parts[] = ($is_list ? '' : $text((string) $name) . ':') . $json($item, $depth + 1);
        }
        return $is_list ? '[' . implode(',', $parts) . ']' : '{' . implode(',', $parts) . '}';
    };
    fwrite(fopen('php://fd/4', 'wb'), $json($value, 0));
})(eval((static function () {
    $code = file_get_contents('php://fd/5');
    $plain = preg_replace('/\A(#![^\n]*\n)?\s*<\?php(?=\s|\z)/', '', $code, 1, $count);
    // A page with code in it begins outside of the code.
    return $count === 0 && str_contains($code, '<?php') ? '?>' . $code : $plain;
})()));
