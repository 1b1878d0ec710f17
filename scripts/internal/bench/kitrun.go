package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

const (
	kitRunRounds = 15
	kitRunMost   = 200 // ms more than a bare Node takes for the same module
)

// empty takes a run of a kit whose entry does nothing against a bare Node that runs
// the same module: what is added is the proof of the copy, twice, the Store, and a
// Node that is ready for a kit. All of it stands in dir, on the disk.
func (k kitStand) empty(ctx context.Context, dir string) (f Figure, err error) {
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{
		"source/kit.json": kitManifest, "source/flow.json": "{}", "source/entry.mjs": kitEntry,
		"request.json": `{"schema":"kontour.kit.execution_request","version":"1.0","kit_id":"bench"}`,
	} {
		if err := os.MkdirAll(filepath.Dir(at(name)), 0o755); err != nil {
			return f, err
		}
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			return f, err
		}
	}
	if err := k.run(ctx, "install", at("source"), "--dest", at("work")); err != nil {
		return f, err
	}
	ours, base, err := alternate(kitRunRounds, 1, func() error {
		return k.run(ctx, "run", "bench", "--dest", at("work"), "--request", at("request.json"), "--controller-root", at("controller"),
			"--store-dir", at("store"), "--runtime-dir", at("run"), "--docker-host", "unix:///nonexistent/docker.sock")
	}, func() error {
		cmd := exec.CommandContext(ctx, "node", at("source/entry.mjs"))
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + k.dir}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("node: %w: %s", err, out)
		}
		return nil
	})
	if err != nil {
		return f, err
	}
	return newFigure("kit_run", "ms", kitRunRounds, ours.median(), base.median()).addedMost(kitRunMost), nil
}
