//! Sandboxes at the same time: nothing of one is in another.

use crate::support::{Mode, python};

#[test]
fn two_runs_do_not_see_each_other() {
    for mode in Mode::available() {
        let code = "import socket, time, os\n\
                    try:\n    s = socket.socket(socket.AF_UNIX); s.bind('\\0toolpost-sibling'); s.listen()\nexcept OSError: pass\n\
                    open('own', 'w').write('x')\nprint(os.getpid(), flush=True)\ntime.sleep(1.5)";
        let spy = "import socket, os, time\n\
                   time.sleep(0.7)\nresults = []\n\
                   try:\n    socket.socket(socket.AF_UNIX).connect('\\0toolpost-sibling'); results.append('socket')\nexcept OSError: pass\n\
                   try:\n    if 'toolpost-sibling' in open('/proc/net/unix').read(): results.append('name')\nexcept OSError: pass\n\
                   if os.path.exists('own'): results.append('file')\nresults";
        std::thread::scope(|scope| {
            let first = scope.spawn(|| python(&mode.sandbox(), code));
            let outcome = python(&mode.sandbox(), spy);
            assert_eq!(outcome.value, Some(serde_json::json!([])), "{mode:?} {}", outcome.stderr.text());
            assert!(first.join().unwrap().verdict.is_ok());
        });
    }
}
