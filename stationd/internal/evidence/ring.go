package evidence

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"drawbridge/shared/redact"
	"drawbridge/stationd/internal/wire"
)

// Bounds of a log on disk. Both count whole files, headers included.
const (
	MaxLog = headMost + tailMost // bytes of one attempt

	headMost    = 1 << 20   // the first
	tailMost    = 7 << 20   // the last
	segmentMost = 128 << 10 // of one file of the tail, unless one frame has more
	frameMost   = 512 << 10 // text of one frame; what is over it is dropped

	frameHeader = 16
	headerMost  = 1 << 10
)

// headName is the file of the first bytes; those of the last have numbers.
const (
	headName   = "head"
	tailPrefix = "tail-"
)

// ring is a log on disk: a file that is filled once, and numbered files of which the
// oldest is removed before the newest would go over the bound. A file begins with a
// line of JSON that says all that later files need of earlier ones.
type ring struct {
	dir      string
	segments []segment // oldest first; the last is written to
	file     *os.File  // open on the last, nil before the first
	number   int       // of the next file of the tail

	total int64                  // bytes of text that ever came
	lost  int64                  // bytes that were missing in what came
	marks map[string]redact.Mark // of each stream, behind the last frame
	err   error                  // a write that failed, until it was asked for
}

// segment is one file.
type segment struct {
	path string
	size int64
}

// segmentHeader is the first line of a file.
type segmentHeader struct {
	Start int64                  `json:"start"`
	Lost  int64                  `json:"lost"`
	Marks map[string]redact.Mark `json:"marks"`
}

// frame is what stands in a file: a stream's text and the mark behind it, or how much
// of a stream is missing. On disk: a byte for the stream, one for the mark's state, one
// that is 1 for missing bytes, one that is 0; four with the length of the text, eight
// with the mark's position, big endian; the text, which for missing bytes is their
// number.
type frame struct {
	stream string
	text   []byte
	lost   int64
	mark   redact.Mark
}

var streamNames = []string{"", wire.Stdout, wire.Stderr} // by their byte

// openRing opens the files of dir. What was being written when the writer died is cut
// off.
func openRing(dir string) (*ring, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	g := &ring{dir: dir, number: 1, marks: map[string]redact.Mark{}}
	all, err := segmentsOf(dir)
	if err != nil {
		return nil, err
	}
	for len(all) > 0 {
		last := all[len(all)-1]
		if err := g.resume(last); err == nil {
			break
		} else if !errors.Is(err, errTorn) {
			return nil, err
		}
		if err := os.Remove(last.path); err != nil { // it never got its header
			return nil, err
		}
		all = all[:len(all)-1]
	}
	if g.segments = all; len(all) > 0 {
		g.segments[len(all)-1].size, err = g.file.Seek(0, io.SeekEnd)
		_, _ = fmt.Sscanf(filepath.Base(all[len(all)-1].path), tailPrefix+"%d", &g.number)
		if filepath.Base(all[len(all)-1].path) != headName {
			g.number++
		}
	}
	return g, err
}

// resume reads the last file: what came before it, and its frames.
func (g *ring) resume(s segment) error {
	f, err := os.OpenFile(s.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	in := bufio.NewReader(f)
	h, n, err := readHeader(in)
	if err != nil {
		f.Close()
		return err
	}
	g.total, g.lost = h.Start, h.Lost
	maps.Copy(g.marks, h.Marks)
	good := n
	for {
		fr, n, err := readFrame(in)
		if err != nil { // the end, or a frame that was cut off
			break
		}
		g.count(fr)
		good += n
	}
	if err := f.Truncate(good); err != nil {
		f.Close()
		return err
	}
	g.file = f
	return nil
}

func (g *ring) count(f frame) {
	g.marks[f.stream] = f.mark
	g.lost += f.lost
	if f.lost == 0 {
		g.total += int64(len(f.text))
	}
}

// put appends a frame: text of a stream, or lost bytes of it.
func (g *ring) put(stream string, text []byte, lost int64, m redact.Mark) {
	f := frame{stream, text, lost, m}
	if len(text) > frameMost {
		f.text = text[:frameMost]
	}
	data := f.encode()
	err := g.room(int64(len(data)))
	if err == nil {
		err = g.append(data)
	}
	if err != nil {
		g.err = err
	}
	f.text = text // what was not written counts, too
	g.count(f)
}

// append writes whole data or nothing.
func (g *ring) append(data []byte) error {
	last := &g.segments[len(g.segments)-1]
	n, err := g.file.Write(data)
	if err == nil {
		last.size += int64(n)
		return nil
	}
	if n > 0 {
		if g.file.Truncate(last.size) != nil {
			return errors.Join(err, g.close()) // the next frame gets a new file
		}
		_, _ = g.file.Seek(last.size, io.SeekStart)
	}
	return err
}

// room makes the file that n more bytes go to: nothing goes over the bounds, not even
// for a moment.
func (g *ring) room(n int64) error {
	if len(g.segments) > 0 && g.file != nil {
		last := g.segments[len(g.segments)-1]
		switch {
		case g.tail() == 0:
			if last.size+n <= headMost {
				return nil
			}
		case last.size+n <= segmentMost:
			return g.drop(n)
		}
	}
	if err := g.close(); err != nil {
		return err
	}
	h, err := json.Marshal(segmentHeader{Start: g.total, Lost: g.lost, Marks: g.marks})
	if err != nil {
		return err
	}
	h = append(h, '\n')
	name := headName
	if len(g.segments) > 0 {
		if err := g.drop(n + int64(len(h))); err != nil {
			return err
		}
		name = fmt.Sprintf("%s%08d", tailPrefix, g.number)
	}
	path := filepath.Join(g.dir, name)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.Write(h); err != nil {
		f.Close()
		return errors.Join(err, os.Remove(path))
	}
	if name != headName {
		g.number++
	}
	g.file = f
	g.segments = append(g.segments, segment{path: path, size: int64(len(h))})
	return nil
}

// tail is the size of the tail.
func (g *ring) tail() (n int64) {
	for _, s := range g.segments[min(1, len(g.segments)):] {
		n += s.size
	}
	return n
}

// drop removes the oldest files of the tail until n more bytes have room.
func (g *ring) drop(n int64) error {
	for over := g.tail() + n - tailMost; over > 0 && len(g.segments) > 2; {
		if err := os.Remove(g.segments[1].path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		over -= g.segments[1].size
		g.segments = slices.Delete(g.segments, 1, 2)
	}
	return nil
}

// list is what a reader may read now.
func (g *ring) list() []segment { return slices.Clone(g.segments) }

// close ends the file that is written to. It is not made durable: what a crash of the
// machine takes is the output of a daemon that died with it.
func (g *ring) close() error {
	if g.file == nil {
		return nil
	}
	f := g.file
	g.file = nil
	return f.Close()
}

// segmentsOf lists the files of a log, oldest first.
func segmentsOf(dir string) (all []segment, err error) {
	entries, err := os.ReadDir(dir) // sorted: head, then the numbers
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Name() != headName && !strings.HasPrefix(e.Name(), tailPrefix) {
			continue
		}
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		all = append(all, segment{path: filepath.Join(dir, e.Name()), size: info.Size()})
	}
	return all, nil
}

var errTorn = errors.New("the end of a file is missing")

func readHeader(in *bufio.Reader) (h segmentHeader, n int64, err error) {
	line, err := in.ReadSlice('\n')
	if err != nil || len(line) > headerMost || json.Unmarshal(line, &h) != nil {
		return h, 0, errTorn
	}
	return h, int64(len(line)), nil
}

func (f frame) encode() []byte {
	text, missing := f.text, byte(0)
	if f.lost > 0 {
		text, missing = fmt.Append(nil, f.lost), 1
	}
	out := make([]byte, frameHeader, frameHeader+len(text))
	out[0], out[1], out[2] = byte(slices.Index(streamNames, f.stream)), f.mark.State, missing
	binary.BigEndian.PutUint32(out[4:], uint32(len(text)))
	binary.BigEndian.PutUint64(out[8:], uint64(f.mark.Taken))
	return append(out, text...)
}

// readFrame reads one frame; io.EOF at the end between two, errTorn inside of one.
func readFrame(in *bufio.Reader) (f frame, n int64, err error) {
	var h [frameHeader]byte
	if _, err := io.ReadFull(in, h[:]); err == io.EOF {
		return f, 0, err
	} else if err != nil {
		return f, 0, errTorn
	}
	length := binary.BigEndian.Uint32(h[4:])
	if int(h[0]) >= len(streamNames) || h[0] == 0 || length > frameMost {
		return f, 0, errTorn
	}
	text := make([]byte, length)
	if _, err := io.ReadFull(in, text); err != nil {
		return f, 0, errTorn
	}
	f = frame{stream: streamNames[h[0]], text: text, mark: redact.Mark{Taken: int64(binary.BigEndian.Uint64(h[8:])), State: h[1]}}
	if h[2] == 1 {
		if _, err := fmt.Fscan(bytes.NewReader(text), &f.lost); err != nil {
			return f, 0, errTorn
		}
	}
	return f, frameHeader + int64(length), nil
}
