package worker

import (
	"bytes"

	"drawbridge/shared/fault"
)

// tailEvent is one line of a turn as far as an operator wants to see it.
type tailEvent struct {
	kind, item string
	usage      Usage
}

// eventTail reads lines as they come. It is for the eye only: what counts is read
// again, whole, by ParseEvents.
type eventTail struct {
	see  func(tailEvent)
	buf  []byte
	skip bool // the line is longer than an eye wants
}

const tailLine = 64 << 10

func (t *eventTail) write(p []byte) {
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		part := p
		if i >= 0 {
			part = p[:i]
		}
		if len(t.buf)+len(part) > tailLine {
			t.skip = true
		}
		if !t.skip {
			t.buf = append(t.buf, part...)
		}
		if i < 0 {
			return
		}
		if !t.skip {
			t.line()
		}
		t.buf, t.skip = t.buf[:0], false
		p = p[i+1:]
	}
}

func (t *eventTail) line() {
	var e codexEvent
	if decodeObject(t.buf, &e) != nil {
		return
	}
	out := tailEvent{kind: fault.CleanLine(text(e.Type))}
	var item codexItem
	if decodeObject(e.Item, &item) == nil {
		out.item = fault.CleanLine(text(item.Type))
	}
	if e.Usage != nil {
		out.usage = usageOf(e.Usage)
	}
	if out.kind != "" && len(out.kind) <= 64 && len(out.item) <= 64 {
		t.see(out)
	}
}
