package bench

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	kitFiles  = 10_000
	kitRounds = 5
	kitMost   = 1.5        // of sha256sum over the same files
	kitRoom   = 1 << 30    // bytes that source and copy need with room to spare
	memory    = "/dev/shm" // a file system without a disk
)

// kits takes the installation and the verification of a large kit against
// sha256sum over the same files, all of them in the page cache. An install reads
// the source, writes a copy, makes it durable and reads that again. How long a disk
// takes to make 110 MB durable is no figure of ours, so both stand in memory where
// there is room.
func kits(ctx context.Context, s *stand) (out []Figure, err error) {
	k := kitStand{program: filepath.Join(s.opts.Bin, "kitrun"), dir: s.below("kit")}
	if err := os.MkdirAll(k.dir, 0o755); err != nil {
		return nil, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(memory, &fs); err == nil && int64(fs.Bavail)*fs.Bsize >= kitRoom {
		if k.dir, err = os.MkdirTemp(memory, "bench-kit-"); err != nil {
			return nil, fmt.Errorf("make a directory in memory: %w", err)
		}
		defer os.RemoveAll(k.dir)
	}
	source, dest := filepath.Join(k.dir, "source"), filepath.Join(k.dir, "work")
	names, err := writeKit(source)
	if err != nil {
		return nil, err
	}
	var install, verify, base samples
	for i := -1; i < kitRounds; i++ {
		if err := os.RemoveAll(dest); err != nil {
			return nil, err
		}
		for _, side := range []struct {
			into *samples
			do   func() error
		}{
			{&install, func() error { return k.run(ctx, "install", source, "--dest", dest) }},
			{&base, func() error { return k.sums(ctx, source, names) }},
			{&verify, func() error { return k.run(ctx, "verify", "bench", "--dest", dest) }},
		} {
			begin := time.Now()
			if err := side.do(); err != nil {
				return nil, err
			}
			if i >= 0 { // the first round warms the cache
				*side.into = append(*side.into, milliseconds(time.Since(begin)))
			}
		}
	}
	run, err := k.empty(ctx, s.below("kit-run"))
	if err != nil {
		return nil, err
	}
	return []Figure{
		newFigure("kit_install", "ms", kitRounds, install.median(), base.median()).ratioMost(kitMost),
		newFigure("kit_verify", "ms", kitRounds, verify.median(), base.median()).ratioMost(kitMost),
		run,
	}, nil
}

// kitStand is what all figures on kits share.
type kitStand struct{ program, dir string }

func (k kitStand) run(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, k.program, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + k.dir}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kitrun %s: %w: %s", args[0], err, out)
	}
	return nil
}

// sums is the baseline: one sha256sum, or as many as the length of a command line
// makes necessary.
func (k kitStand) sums(ctx context.Context, dir string, names []byte) error {
	cmd := exec.CommandContext(ctx, "xargs", "-0", "sha256sum", "--")
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(names)
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("sha256sum: %w: %s", err, errs.String())
	}
	return nil
}

// The kit of all figures.
const (
	kitManifest = `{"schema_version":"1.0","id":"bench","name":"Bench","flows":[{"id":"bench.flow","path":"flow.json"}],` +
		`"execution":{"contract":"kontour.kit.execution_request@1.0","module":"entry.mjs","export":"run"}}`
	kitEntry = "export const run = () => ({ status: 'completed' });\n"
)

// writeKit makes the large kit, and gives its files as xargs takes them. The sizes are
// those of a source tree: most files small, 11 KiB in the mean, the same in every
// run.
func writeKit(root string) (names []byte, err error) {
	files := map[string][]byte{
		"kit.json":  []byte(kitManifest),
		"flow.json": []byte("{}"),
		"entry.mjs": []byte(kitEntry),
	}
	r := rand.New(rand.NewPCG(1, 2))
	content := make([]byte, 256<<10)
	for i := range content {
		content[i] = byte(r.Uint32())
	}
	for i := len(files); i < kitFiles; i++ {
		size := min(len(content), 512+int(10_500*r.ExpFloat64()))
		files[filepath.Join("part"+strconv.Itoa(i%100), "file"+strconv.Itoa(i)+".txt")] = content[len(content)-size:]
	}
	for name, data := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return nil, err
		}
	}
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			rel, _ := filepath.Rel(root, path)
			names = append(append(names, rel...), 0)
		}
		return err
	})
	return names, err
}
