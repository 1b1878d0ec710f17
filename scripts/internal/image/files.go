package image

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// listTimeout bounds `busybox --list`.
const listTimeout = 10 * time.Second

// libraryDirs are where the loader looks on Debian and its relatives when a
// program names no directory of its own.
var libraryDirs = []string{
	"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib",
}

// requireStatic refuses a program that needs a loader: the image has no
// libraries but git's.
func requireStatic(program string) error {
	f, err := elf.Open(program)
	if err != nil {
		return fmt.Errorf("read the program %s: %w", program, err)
	}
	defer f.Close()
	if interpreter(f) != "" {
		return fmt.Errorf("%s is linked to libraries; a static one is needed (Debian: busybox-static)", program)
	}
	return nil
}

// appletsOf asks busybox for the names it answers to.
func appletsOf(ctx context.Context, busybox string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, busybox, "--list")
	cmd.Env = []string{}
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the applets of %s: %w", busybox, err)
	}
	var applets []string
	for _, name := range strings.Fields(string(out)) {
		if name != "busybox" && !strings.Contains(name, "/") {
			applets = append(applets, name)
		}
	}
	if !slices.Contains(applets, "sh") {
		return nil, fmt.Errorf("%s has no shell among its applets", busybox)
	}
	return applets, nil
}

// libraries are the loader and all libraries that program needs, each at the
// path where the loader finds it, sorted.
func libraries(program string) ([]string, error) {
	found := map[string]bool{}
	var visit func(at string) error
	visit = func(at string) error {
		f, err := elf.Open(at)
		if err != nil {
			return fmt.Errorf("read %s: %w", at, err)
		}
		defer f.Close()
		loader := interpreter(f)
		needed, err := f.ImportedLibraries()
		if err != nil {
			return fmt.Errorf("list the libraries of %s: %w", at, err)
		}
		if loader != "" {
			found[loader] = true
		}
		for _, name := range needed {
			path, err := library(name)
			if err != nil {
				return fmt.Errorf("%s: %w", at, err)
			}
			if !found[path] && !found[loaderOf(found, name)] {
				found[path] = true
				if err := visit(path); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := visit(program); err != nil {
		return nil, err
	}
	all := make([]string, 0, len(found))
	for path := range found {
		all = append(all, path)
	}
	slices.Sort(all)
	return all, nil
}

// loaderOf gives the loader that is already in found when name is its soname:
// the C library names it as a library, too.
func loaderOf(found map[string]bool, name string) string {
	for path := range found {
		if filepath.Base(path) == name {
			return path
		}
	}
	return ""
}

func library(name string) (string, error) {
	for _, dir := range libraryDirs {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("the library %s is in none of %s", name, strings.Join(libraryDirs, " "))
}

// interpreter is the loader that a dynamic program names, "" for a static one.
func interpreter(f *elf.File) string {
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		name := make([]byte, p.Filesz)
		if _, err := p.ReadAt(name, 0); err == nil {
			return string(bytes.TrimRight(name, "\x00"))
		}
	}
	return ""
}

// Find gives the first of the paths that is there.
func Find(what string, paths ...string) (string, error) {
	for _, path := range paths {
		real, err := filepath.EvalSymlinks(path)
		if err == nil {
			return real, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("find %s: %w", what, err)
		}
	}
	return "", fmt.Errorf("%s is not at %s: run scripts/setup", what, strings.Join(paths, " or "))
}

// BuildFake builds the stand-in for codex (scripts/cmd/fakecodex) from the
// sources beside this file into the file out. Equal sources at an equal place
// give equal bytes; -trimpath would make the place irrelevant, and compile the
// standard library once more.
func BuildFake(ctx context.Context, out string) error {
	_, here, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(here) {
		return errors.New("build the fake codex: this program does not know its sources; build it without -trimpath")
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-ldflags", "-s -w -buildid=", "-o", out, ".")
	cmd.Dir = filepath.Join(filepath.Dir(here), "..", "..", "cmd", "fakecodex")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the fake codex: %w\n%s", err, said)
	}
	return nil
}
