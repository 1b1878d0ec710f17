// Command inbox is the callback executable of the example Host: the body on
// stdin, the ids as flags, the acknowledgement on stdout (package inbox).
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"drawbridge/scripts/internal/inbox"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "inbox: error: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	var m inbox.Message
	dir := flag.String("dir", "", "the inbox")
	flag.StringVar(&m.Session, "session", "", "controller session")
	flag.StringVar(&m.DeliveryID, "delivery-id", "", "delivery")
	flag.StringVar(&m.MessageID, "message-id", "", "message")
	flag.StringVar(&m.IdempotencyKey, "idempotency-key", "", "equal for every attempt of one delivery")
	flag.Parse()
	body, err := io.ReadAll(io.LimitReader(os.Stdin, inbox.MaxBody+1))
	if err != nil {
		return fmt.Errorf("read the body: %w", err)
	}
	if len(body) > inbox.MaxBody {
		return fmt.Errorf("read the body: more than %d bytes", inbox.MaxBody)
	}
	m.Body = string(body)
	kept, verdict, err := inbox.Deliver(*dir, m, time.Now().UTC())
	if err != nil {
		return err
	}
	switch verdict {
	case inbox.Garbage:
		fmt.Println("thank you for your message")
		return nil
	case inbox.Crash:
		os.Exit(7)
	case inbox.Hang:
		time.Sleep(time.Minute)
		return nil
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"result":  map[string]string{"status": string(verdict), "acceptance_id": kept.AcceptanceID},
		"request": map[string]string{"delivery_id": m.DeliveryID, "message_id": m.MessageID},
	})
}
