package inbox_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/scripts/internal/inbox"
)

func TestDeliver_OncePerKey(t *testing.T) {
	dir := t.TempDir()
	m := inbox.Message{Session: "s", DeliveryID: "d", MessageID: "m", IdempotencyKey: "k", Body: "two\nlines"}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			got, verdict, err := inbox.Deliver(dir, m, time.Unix(1, 0))
			if err != nil || verdict != inbox.Accepted || got.AcceptanceID != "inbox-1" {
				t.Errorf("Deliver: %q %q %v", got.AcceptanceID, verdict, err)
			}
		})
	}
	all.Wait()
	messages, err := inbox.Messages(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(messages) != 1 || messages[0].Body != "two\nlines" {
		t.Errorf("messages %+v", messages)
	}
	attempts, err := inbox.Attempts(dir)
	if err != nil || len(attempts) != 8 {
		t.Errorf("%d attempts, %v", len(attempts), err)
	}
}

func TestDeliver_Script(t *testing.T) {
	dir := t.TempDir()
	if err := inbox.SetScript(dir, inbox.Retry, inbox.Garbage); err != nil {
		t.Fatal(err)
	}
	var got []string
	for i := range 3 {
		_, verdict, err := inbox.Deliver(dir, inbox.Message{IdempotencyKey: fmt.Sprint(i)}, time.Now())
		got = append(got, fmt.Sprint(verdict, " ", err))
	}
	if diff := cmp.Diff([]string{"retry <nil>", "garbage <nil>", "accepted <nil>"}, got); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
	if messages, _ := inbox.Messages(dir); len(messages) != 1 {
		t.Errorf("%d messages, want 1", len(messages))
	}
	if err := inbox.SetScript(dir, "nonsense"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := inbox.Deliver(dir, inbox.Message{}, time.Now()); err == nil {
		t.Error("a script of nonsense is obeyed")
	}
}

func TestAwait(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := inbox.Await(ctx, dir, func(m []inbox.Message) bool { return len(m) > 0 }); err == nil {
		t.Error("an empty inbox is enough")
	}
}
