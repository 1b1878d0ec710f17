package deliver

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"drawbridge/outboxd/internal/command"
	"drawbridge/shared/callback"
	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
	"drawbridge/shared/profile"
	"drawbridge/shared/store"
	"drawbridge/shared/strictjson"
)

// deliver makes one claimed attempt, from the Profile on disk to the settled
// row. ctx does not end with the drain.
func (c *Courier) deliver(ctx context.Context, lease *store.Lease, row store.Callback) {
	log := c.opt.Log.With("delivery", row.DeliveryID, "attempt", row.Attempts)
	defer func() {
		if r := recover(); r != nil {
			log.Error("attempt panicked", "err", fmt.Errorf("%w: %v", errPanic, r), "stack", string(debug.Stack()))
			c.settle(ctx, log, row, callback.NoProcess(callback.Uncertain, callback.CodeRouterThrew))
		}
	}()
	call, out := c.prepare(row)
	if call == nil {
		log.Warn("refused before the start", "code", out.Code)
		c.settle(ctx, log, row, out)
		return
	}
	if err := c.start(ctx, lease, row); err != nil {
		// Nothing runs, whatever is stored, and nothing will: say so rather than
		// leave the row to the end of its claim.
		log.Warn("not started", "err", err)
		c.settle(ctx, log, row, callback.NoProcess(callback.RetryableFailure, callback.CodeSpawnFailed))
		return
	}
	begin := c.opt.Now()
	out = call.Run(ctx)
	log.Info("attempt ended", "disposition", string(out.Disposition), "code", out.Code,
		"status", out.Status, "signal", out.Signal, "took", c.opt.Now().Sub(begin).Round(time.Millisecond))
	c.settle(ctx, log, row, out)
}

// start commits the start marker, with the lease looked at before and after: a
// program that was stopped in between must not start a child.
func (c *Courier) start(ctx context.Context, lease *store.Lease, row store.Callback) error {
	if err := lease.Check(); err != nil {
		return err
	}
	if err := c.opt.Store.MarkStarted(ctx, lease, row.DeliveryID, row.AttemptID); err != nil {
		return err
	}
	return lease.Check()
}

// prepare reads the Profile again and makes the checks that need no process.
func (c *Courier) prepare(row store.Callback) (*command.Call, callback.Outcome) {
	refuse := func(code string) (*command.Call, callback.Outcome) {
		return nil, callback.NoProcess(callback.PermanentFailure, code)
	}
	p, err := c.opt.Captured.Check()
	if err != nil {
		return refuse(callback.CodeRuntimeInvalid)
	}
	if row.RouteProfileID != c.family.ProfileID {
		return refuse(callback.CodeRouterRoute)
	}
	env, err := callback.ParseEnvelope(row.Envelope)
	if err != nil || env.DeliveryID != row.DeliveryID || env.IdempotencyKey != row.IdempotencyKey ||
		env.Event.ID != row.MessageID || env.Event.Body != row.Body {
		return refuse(callback.CodeEnvelopeRoute)
	}
	return c.transport(p).Prepare(command.Attempt{Number: row.Attempts, ID: row.AttemptID, Route: routeOf(row), Envelope: env})
}

func (c *Courier) transport(p profile.Profile) command.Transport {
	return command.Transport{Profile: p, Session: c.opt.Captured.Session, Environ: c.opt.Environ, Now: c.opt.Now}
}

// settle commits the outcome. It needs no lease: the attempt id is the fence. If
// it cannot be committed, the row is left as started and becomes uncertain.
func (c *Courier) settle(ctx context.Context, log *slog.Logger, row store.Callback, out callback.Outcome) {
	evidence := strictjson.Ordered("transport", profile.CommandTransport, "status", out.Status, "signal", out.Signal)
	var err error
	for try := range settleTries {
		if try > 0 {
			time.Sleep(settlePause << try)
		}
		var after store.Callback
		after, err = c.opt.Store.SettleCallback(ctx, store.Outcome{
			DeliveryID: row.DeliveryID, AttemptID: row.AttemptID, Disposition: string(out.Disposition),
			Code: out.Code, AcceptanceID: out.AcceptanceID, Evidence: evidence,
		})
		if err == nil {
			crashpoint.At("callback_outcome_committed")
			log.Info("settled", "row", after.Status, "code", out.Code)
			return
		}
		if !fault.Is(err, fault.StoreBusy) {
			break
		}
	}
	log.Error("outcome not committed: the row becomes uncertain", "err", err)
}
