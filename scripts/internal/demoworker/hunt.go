package demoworker

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// capability is the variable of the container that holds what was lent.
const capability = "KONTOUR_PROVIDER_CAPABILITY"

const (
	chunk = 1 << 20
	// maxMemory bounds what is read of one process: what is written to, not the
	// program itself.
	maxMemory = 512 << 20
	// memoryLooks is how often memory is read; the machine has other things to do.
	memoryLooks = 3
)

// hunt searches for secrets and keeps where it found one.
type hunt struct {
	secrets map[string][]byte // by name
	places  []string          // in the order of the search
	sizes   map[string]int64
	found   []string
	failed  []string
}

// bytes searches data.
func (h *hunt) bytes(place string, data []byte) { h.reader(place, place, bytes.NewReader(data)) }

// reader searches a stream; place is the line of the summary, at the exact spot.
func (h *hunt) reader(place, at string, r io.Reader) {
	longest := 0
	for _, secret := range h.secrets {
		longest = max(longest, len(secret))
	}
	buf := make([]byte, 0, chunk+longest)
	for {
		// What may be the beginning of a secret stays in front of the next piece.
		keep := min(len(buf), max(0, longest-1))
		copy(buf, buf[len(buf)-keep:])
		n, err := io.ReadFull(r, buf[keep:keep+chunk])
		buf = buf[:keep+n]
		h.count(place, int64(n))
		for name, secret := range h.secrets {
			if bytes.Contains(buf, secret) {
				h.hit(name + " in " + at)
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				h.failed = append(h.failed, at+": "+err.Error())
			}
			return
		}
	}
}

func (h *hunt) hit(where string) {
	if !slices.Contains(h.found, where) {
		h.found = append(h.found, where)
	}
}

func (h *hunt) count(place string, n int64) {
	if h.sizes == nil {
		h.sizes = map[string]int64{}
	}
	if _, ok := h.sizes[place]; !ok {
		h.places = append(h.places, place)
	}
	h.sizes[place] += n
}

// tree searches names, link targets and contents below root, but for the places in
// skip, relative to it.
func (h *hunt) tree(place, root string, skip ...string) {
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(root, path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // gone meanwhile
		case err != nil:
			return err
		case d.IsDir() && slices.Contains(skip, rel):
			return fs.SkipDir
		}
		h.reader(place, path+" (its name)", strings.NewReader(rel))
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			if target, err := os.Readlink(path); err == nil {
				h.reader(place, path+" (its target)", strings.NewReader(target))
			}
		case d.Type().IsRegular():
			f, err := os.Open(path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			defer f.Close()
			h.reader(place, path, f)
		}
		return nil
	})
	if err != nil {
		h.failed = append(h.failed, err.Error())
	}
}

// summary is one line for each place.
func (h *hunt) summary() []string {
	out := make([]string, 0, len(h.places))
	for _, place := range h.places {
		out = append(out, fmt.Sprintf("%-52s %12d bytes", place, h.sizes[place]))
	}
	return out
}

// look searches the container while it runs: what the engine says of it, its
// processes and their memory, and once all files that it reaches.
func (s *story) look(ctx context.Context, out *Outcome) {
	var containers []struct{ ID string }
	filter := url.QueryEscape(`{"label":["kontour.worker.run=` + s.run + `"],"status":["running"]}`)
	if err := s.client.Get(ctx, "/containers/json?filters="+filter, &containers); err != nil || len(containers) != 1 {
		return // not yet, or not any more
	}
	inspected, err := s.client.Call(ctx, "GET", "/containers/"+containers[0].ID+"/json", nil)
	if err != nil {
		return
	}
	var state struct {
		State  struct{ Pid int }
		Config struct{ Env, Entrypoint, Cmd []string }
	}
	if err := s.client.Get(ctx, "/containers/"+containers[0].ID+"/json", &state); err != nil || state.State.Pid == 0 {
		return
	}
	processes := members(state.State.Pid)
	if !slices.ContainsFunc(processes, isCodex) {
		return // still on its way
	}
	// The credential is nowhere; the capability is in the environment, for the one
	// program that needs it, and in no argument. That the search finds it in the
	// environment shows that the search can find something.
	lent := ""
	for _, pair := range state.Config.Env {
		if value, ok := strings.CutPrefix(pair, capability+"="); ok {
			lent = value
		}
	}
	if lent == "" {
		return // the one that only says which version the image holds
	}
	reach := &hunt{secrets: map[string][]byte{"credential": []byte(s.credential)}}
	reach.bytes("what the engine says of the container", inspected)
	arguments := &hunt{secrets: map[string][]byte{"credential": []byte(s.credential), "capability": []byte(lent)}}
	control := &hunt{secrets: map[string][]byte{"capability": []byte(lent)}}
	for _, pid := range processes {
		proc := fmt.Sprintf("/proc/%d/", pid)
		environ, err := os.ReadFile(proc + "environ")
		if err != nil {
			continue // ended meanwhile
		}
		control.bytes("environment", environ)
		reach.bytes("environment of the worker's processes", environ)
		if cmdline, err := os.ReadFile(proc + "cmdline"); err == nil {
			arguments.bytes("arguments of the worker's processes", cmdline)
		}
		for _, name := range []string{"comm", "mountinfo", "maps", "status", "cgroup"} {
			if text, err := os.ReadFile(proc + name); err == nil {
				reach.reader("the rest of their /proc", proc+name, bytes.NewReader(text))
			}
		}
		if out.Looks < memoryLooks {
			reach.memory("memory of the worker's processes", pid)
		}
	}
	if len(control.found) == 0 {
		return // they ended under the search
	}
	if out.Looks == 0 {
		reach.tree("all files that the container reaches", fmt.Sprintf("/proc/%d/root/", state.State.Pid), "proc", "sys", "dev")
	}
	out.Looks++
	// Files and memory of a running container may vanish; what was found counts.
	for _, h := range []*hunt{reach, arguments} {
		for _, where := range h.found {
			s.hunt.hit(where)
		}
		for _, place := range h.places {
			s.hunt.count(place, h.sizes[place])
		}
	}
	s.hunt.secrets["capability"] = []byte(lent) // no trace of it may be kept, either
}

// members are the processes in the pid namespace of a container's first one.
func members(first int) []int {
	namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", first))
	if err != nil {
		return nil
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid)); err == nil && theirs == namespace {
			pids = append(pids, pid)
		}
	}
	return pids
}

func isCodex(pid int) bool {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return err == nil && strings.TrimSpace(string(name)) == "codex"
}

// memory searches what a process has written: every private writable mapping.
func (h *hunt) memory(place string, pid int) {
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return
	}
	defer maps.Close()
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return
	}
	defer mem.Close()
	left := int64(maxMemory)
	for rows := bufio.NewScanner(maps); rows.Scan() && left > 0; {
		fields := strings.Fields(rows.Text())
		from, to, ok := span(fields)
		if !ok {
			continue
		}
		size := min(to-from, left)
		left -= size
		r := io.NewSectionReader(mem, from, size)
		h.pages(place, fmt.Sprintf("the memory of process %d", pid), r)
	}
}

// span is the range of a writable mapping that holds what the process wrote.
func span(fields []string) (from, to int64, ok bool) {
	if len(fields) < 2 || !strings.HasPrefix(fields[1], "rw") {
		return 0, 0, false
	}
	low, high, _ := strings.Cut(fields[0], "-")
	from, err := strconv.ParseInt(low, 16, 64)
	if err != nil {
		return 0, 0, false // the kernel's own, above what a signed number holds
	}
	to, err = strconv.ParseInt(high, 16, 64)
	return from, to, err == nil
}

// pages is reader for memory, which may be unmapped while it is read.
func (h *hunt) pages(place, at string, r io.Reader) {
	failed := len(h.failed)
	h.reader(place, at, r)
	h.failed = h.failed[:failed]
}
