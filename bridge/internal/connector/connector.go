// Package connector is a callback executable for Hosts that have none of their
// own: bridge connector deliver takes one callback as command_json_v1 gives it
// (the ids as arguments, the body on stdin) and hands it to the Host in one or
// both of two ways.
//
// The inbox (--inbox DIR) is a file in a directory of the Host, one JSON line a
// message, each message once however often it is delivered (inbox.go). The pane
// (--pane) is the Host's own tmux pane, where the Host is Codex or Claude Code:
// the text is typed as a request by the proven path of package handoff, and taken
// only when the Host's own transcript shows it (pane.go).
//
// The answer is one JSON document on stdout that echoes both ids. It says
// accepted only for what was proven; retry where nothing was delivered and a
// later attempt may succeed; rejected where this message can never be delivered;
// and unknown where it may have arrived. bridge connector profile prints a Host
// Profile for it.
package connector

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"drawbridge/bridge/internal/hostbridge"
	"drawbridge/shared/fault"
	"drawbridge/shared/service"
	"drawbridge/shared/strictjson"
)

// Bounds.
const (
	MaxBody     = 1 << 20          // bytes of one body
	maxIdent    = 1024             // bytes of one id
	defaultWait = 20 * time.Second // for a lock, and for the Host to be idle
	maxWait     = 28 * time.Second // an attempt may take 30 s (host-profile §1)
)

// Word is the disposition in an acknowledgement.
type Word string

// The four words; a Profile maps them to the outcomes of the same meaning.
const (
	Accepted Word = "accepted"
	Retry    Word = "retry"
	Rejected Word = "rejected"
	Unknown  Word = "unknown"
)

// Message is one callback.
type Message struct {
	Session        string
	DeliveryID     string
	MessageID      string
	IdempotencyKey string
	Body           string
}

// A Verdict says what became of a Message.
type Verdict struct {
	Word         Word
	AcceptanceID string // with Accepted
	Reason       string // one line, otherwise
}

func refuse(word Word, format string, args ...any) Verdict {
	return Verdict{Word: word, Reason: fault.CleanLine(fmt.Sprintf(format, args...))}
}

// settings of deliver.
type settings struct {
	hostbridge.Settings
	message Message
	inbox   string
	pane    string
	wait    time.Duration
}

// Command is bridge connector.
func Command(stdin io.Reader, stdout, stderr io.Writer) *service.Command {
	return &service.Command{
		Name: "connector", Short: "Take callbacks for a Host that has no executable of its own",
		Commands: []*service.Command{deliverCommand(stdin, stdout, stderr), profileCommand(stdout)},
	}
}

func deliverCommand(stdin io.Reader, stdout, stderr io.Writer) *service.Command {
	var s settings
	return &service.Command{
		Name: "deliver", Short: "Deliver one callback, as command_json_v1 gives it",
		Long: "deliver reads the body on standard input and hands it to the Host: into its inbox file, into\n" +
			"its own tmux pane, or both. It prints the acknowledgement that a Profile made by\n" +
			"\"bridge connector profile\" understands. The exit status is 0 when it is accepted.",
		Flags:         s.register,
		OtherSettings: true,
		Run: func(ctx context.Context, _ []string) error {
			if err := s.check(); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, s.wait)
			defer cancel()
			v := s.deliver(ctx, stdin, stderr)
			if _, err := stdout.Write(s.message.acknowledgement(v)); err != nil {
				return fmt.Errorf("write the acknowledgement: %w", err)
			}
			if v.Word != Accepted {
				fmt.Fprintf(stderr, "bridge: %s: %s\n", v.Word, v.Reason)
				return service.Status(service.ExitFail)
			}
			return nil
		},
	}
}

func (s *settings) register(fs *flag.FlagSet) {
	s.Register(fs)
	m := &s.message
	service.Argument(fs, &m.Session, "session", "controller `session` of the callback")
	service.Argument(fs, &m.DeliveryID, "delivery-id", "`id` of the delivery")
	service.Argument(fs, &m.MessageID, "message-id", "`id` of the message")
	service.Argument(fs, &m.IdempotencyKey, "idempotency-key", "`key` that is equal in every attempt (default: the delivery id)")
	service.Argument(fs, &s.inbox, "inbox", "the Host's own `directory` for messages, made if absent")
	service.Argument(fs, &s.pane, "pane", "type into the Host's pane: `thread` (the one that shows the session as its native thread) or current (that of the Host process, whatever it shows)")
	fs.DurationVar(&s.wait, "wait", defaultWait, "how long to wait for the Host to be idle; less than the Profile's timeoutMs")
}

func (s *settings) check() error {
	m := &s.message
	if m.IdempotencyKey == "" {
		m.IdempotencyKey = m.DeliveryID
	}
	for _, id := range []struct{ flag, value string }{
		{"session", m.Session}, {"delivery-id", m.DeliveryID}, {"message-id", m.MessageID}, {"idempotency-key", m.IdempotencyKey},
	} {
		switch {
		case id.value == "":
			return fault.New(fault.Usage, "connector deliver: --%s is missing", id.flag)
		case len(id.value) > maxIdent || strings.ContainsAny(id.value, "\n\r\x00"):
			return fault.New(fault.Usage, "connector deliver: --%s is not one line of at most %d bytes", id.flag, maxIdent)
		}
	}
	switch {
	case s.inbox == "" && s.pane == "":
		return fault.New(fault.Usage, "connector deliver: give --inbox, --pane or both")
	case s.wait <= 0 || s.wait > maxWait:
		return fault.New(fault.Usage, "connector deliver: --wait is %v, not more than 0 and at most %v", s.wait, maxWait)
	}
	return checkPane(s.pane)
}

func checkPane(pane string) error {
	switch pane {
	case "", paneThread, paneCurrent:
		return nil
	}
	return fault.New(fault.Usage, "--pane is %q, not thread or current", pane)
}

// deliver goes both ways that are wanted. The inbox comes first: it can be
// repeated for certain.
func (s *settings) deliver(ctx context.Context, stdin io.Reader, stderr io.Writer) Verdict {
	body, err := io.ReadAll(io.LimitReader(stdin, MaxBody+1))
	switch {
	case err != nil:
		return refuse(Retry, "read the body: %v", err)
	case len(body) > MaxBody:
		return refuse(Rejected, "the body has more than %d bytes", MaxBody)
	}
	s.message.Body = string(body)
	var v Verdict
	if s.inbox != "" {
		if v = (Inbox{Dir: s.inbox, Now: time.Now}).Deliver(ctx, s.message); v.Word != Accepted {
			return v
		}
	}
	if s.pane != "" {
		return s.intoPane(ctx, stderr)
	}
	return v
}

// acknowledgement is the one document that leaves (host-profile §6).
func (m Message) acknowledgement(v Verdict) []byte {
	result := strictjson.Object{{Name: "status", Value: string(v.Word)}}
	if v.Word == Accepted {
		result = append(result, strictjson.Member{Name: "acceptance_id", Value: v.AcceptanceID})
	} else {
		result = append(result, strictjson.Member{Name: "reason", Value: v.Reason})
	}
	request := strictjson.Object{{Name: "delivery_id", Value: m.DeliveryID}, {Name: "message_id", Value: m.MessageID}}
	return append(strictjson.Ordered("result", result, "request", request), '\n')
}
