package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// Proves station 17.C4: a file of the administrator that others could write is refused,
// and so is one that is malformed.
func TestServe_AdministratorFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for flag, content := range map[string]string{
		"-profiles": `{"profiles":[]}`, "-egress-profiles": `{"profiles":[]}`, "-providers": `{"providers":[]}`,
	} {
		path := w.write("admin"+flag+".json", content)
		for _, mode := range []os.FileMode{0o620, 0o602, 0o666} {
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
			if _, errs, status := w.stationd("serve", flag, path); status != 2 {
				t.Errorf("%s %v: status %d, %s", flag, mode, status, errs)
			}
		}
		if err := os.WriteFile(path, []byte(`{"more":1}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, errs, status := w.stationd("serve", flag, path); status != 2 {
			t.Errorf("%s malformed: status %d, %s", flag, status, errs)
		}
		if out, errs, status := w.stationd("doctor", flag, path); status != 1 || errs != "" || !strings.Contains(out, "error") {
			t.Errorf("doctor %s: status %d, %s %s", flag, status, out, errs)
		}
	}
}

// Settings come from flags, then the environment, then the file.
func TestServe_Settings(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := w.write("config.json", fmt.Sprintf(`{"on-exit":"linger","store-dir":%q}`, w.path("store")))
	if _, errs, status := w.stationd("serve", "-config", file); status != 2 || !strings.Contains(errs, "linger") {
		t.Errorf("the file: status %d, %s", status, errs)
	}
	d := w.launch(false, []string{"STATIOND_ON_EXIT=keep"}, "-config", file).told("READY=1")
	started := w.start()
	d.signal(syscall.SIGTERM).exits(0)
	w.serve("-config", file, "-on-exit", "stop")
	w.must("stop", started.StationID, "-wait")
}
