package store

import "context"

var (
	dispatchesUnresolved = define(`
SELECT ` + dispatchCols + `, ` + turnCols + `
FROM dispatches d
JOIN turns t ON t.turn_id = d.turn_id
WHERE d.resolved_at IS NULL
ORDER BY d.terminal_key, d.generation`)

	// Turns that a monitor may follow, with what they stand on.
	turnsFollowed = define(`
SELECT ` + turnCols + `, ` + dispatchCols + `, ` + bindingCols + `
FROM turns t
JOIN dispatches d ON d.message_id = t.current_message_id
JOIN bindings b ON b.binding_id = t.binding_id
WHERE (t.status = 'created' OR t.status = 'running' OR t.status = 'waiting_for_agent'
  OR t.status = 'waiting_for_controller')
ORDER BY t.created_at, t.turn_id`)

	turnsLost = define(`
SELECT ` + turnCols + `
FROM turns t
WHERE (t.status = 'created' OR t.status = 'running' OR t.status = 'waiting_for_agent'
  OR t.status = 'waiting_for_controller')
  AND NOT EXISTS (SELECT 1 FROM dispatches d WHERE d.message_id = t.current_message_id)
ORDER BY t.created_at, t.turn_id`)

	fencesStray = define(`
DELETE FROM terminal_fences
WHERE (kind = 'dispatch'
    AND NOT EXISTS (SELECT 1 FROM dispatches d WHERE d.message_id = ref_id AND d.resolved_at IS NULL))
  OR (kind = 'transition'
    AND NOT EXISTS (SELECT 1 FROM transitions n WHERE n.transition_id = ref_id
      AND (n.status = 'prepared' OR n.status = 'dispatching' OR n.status = 'submitted'
        OR n.status = 'uncertain' OR n.status = 'verified')))`)

	dispatchesLeft = define(`
UPDATE dispatches
SET resolved_at = max(prepared_at, :now), resolved_reason = 'turn_released'
WHERE resolved_at IS NULL AND EXISTS (
  SELECT 1 FROM turns t WHERE t.turn_id = dispatches.turn_id AND (t.status = 'idle' OR t.status = 'failed' OR t.status = 'cancelled' OR t.status = 'closed'))`)

	fencesMissing = define(`
INSERT INTO terminal_fences(terminal_key, kind, ref_id, generation, lease_epoch, created_at)
SELECT d.terminal_key, 'dispatch', d.message_id, d.generation, d.lease_epoch, :now
FROM dispatches d
WHERE d.resolved_at IS NULL
ORDER BY d.terminal_key, d.generation DESC
ON CONFLICT(terminal_key) DO NOTHING`)

	fencesMissingTransition = define(`
INSERT INTO terminal_fences(terminal_key, kind, ref_id, generation, lease_epoch, created_at)
SELECT n.terminal_key, 'transition', n.transition_id, coalesce((SELECT g.generation FROM terminal_generations g WHERE g.terminal_key = n.terminal_key), 1), n.lease_epoch, :now
FROM transitions n
WHERE (n.status = 'prepared' OR n.status = 'dispatching' OR n.status = 'submitted' OR n.status = 'uncertain'
  OR n.status = 'verified')
ORDER BY n.terminal_key, n.prepared_at DESC
ON CONFLICT(terminal_key) DO NOTHING`)

	fencesBroken = define(`
SELECT
  (SELECT count(*) FROM terminal_fences f
   WHERE (f.kind = 'dispatch'
      AND NOT EXISTS (SELECT 1 FROM dispatches d WHERE d.message_id = f.ref_id AND d.resolved_at IS NULL))
    OR (f.kind = 'transition'
      AND NOT EXISTS (SELECT 1 FROM transitions n WHERE n.transition_id = f.ref_id
        AND (n.status = 'prepared' OR n.status = 'dispatching' OR n.status = 'submitted'
          OR n.status = 'uncertain' OR n.status = 'verified')))) +
  (SELECT count(*) FROM dispatches d JOIN turns t ON t.turn_id = d.turn_id
   WHERE d.resolved_at IS NULL AND (t.status = 'idle' OR t.status = 'failed' OR t.status = 'cancelled' OR t.status = 'closed')) +
  (SELECT count(*) FROM dispatches d
   WHERE d.resolved_at IS NULL AND NOT EXISTS (SELECT 1 FROM terminal_fences f WHERE f.terminal_key = d.terminal_key)) +
  (SELECT count(*) FROM transitions n
   WHERE (n.status = 'prepared' OR n.status = 'dispatching' OR n.status = 'submitted' OR n.status = 'uncertain'
      OR n.status = 'verified') AND NOT EXISTS (SELECT 1 FROM terminal_fences f WHERE f.terminal_key = n.terminal_key))`)

	promptsOpenAll = define(`
SELECT turn_id FROM approvals WHERE cleared_at IS NULL AND (state = 'notified' OR state = 'reserved' OR state = 'expired' OR state = 'uncertain')
UNION
SELECT turn_id FROM interactions
WHERE turn_id IS NOT NULL AND (state = 'candidate' OR state = 'pending' OR state = 'published' OR state = 'manual_required'
  OR state = 'reserved' OR state = 'executing' OR state = 'awaiting_advance' OR state = 'response_uncertain')`)
)

// OpenDispatches lists every unresolved dispatch with its Turn, and what is known
// of its dispatcher: the sweep settles those that nobody works on any more.
func (s *Store) OpenDispatches(ctx context.Context) ([]OpenDispatch, error) {
	var (
		all    []OpenDispatch
		leases []LeaseRow
		fences []Fence
	)
	err := s.view(ctx, func(t *tx) (err error) {
		all, err = list(t, func(r scanner) (o OpenDispatch, err error) {
			err = r.Scan(append(o.Dispatch.dest(), o.Turn.dest()...)...)
			return o, err
		}, dispatchesUnresolved)
		if err == nil {
			leases, err = leasesOf(t, TerminalLease(""))
		}
		if err == nil {
			fences, err = list(t, scanFence, fencesAll)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	over := s.holders()
	held, fenced := map[string]bool{}, map[string]string{}
	for _, l := range leases {
		held[l.Name] = s.live(l, over)
	}
	for _, f := range fences {
		fenced[f.TerminalKey] = f.RefID
	}
	for i := range all {
		d := all[i].Dispatch
		gone, known := over(d.Dispatcher)
		all[i].DispatcherGone = gone && known
		all[i].TerminalFree = !held[TerminalLease(d.TerminalKey)]
		all[i].Fenced = fenced[d.TerminalKey] == d.MessageID
	}
	return all, nil
}

// RepairFences makes fences and dispatches agree: a fence without an open row
// goes, a row whose Turn is released is resolved, a row without a fence gets one.
// It gives the number of repairs; normally there are none.
func (s *Store) RepairFences(ctx context.Context) (repaired int, err error) {
	if err := s.Writable(); err != nil {
		return 0, err
	}
	broken, _, err := first(pool{ctx, s.rdb}, scanInt, fencesBroken)
	if err != nil || broken == 0 {
		return 0, storeError("compare fences", err)
	}
	err = s.transact(ctx, func(t *tx) error {
		repaired = 0
		for _, st := range []stmt{dispatchesLeft, fencesStray, fencesMissing, fencesMissingTransition} {
			n, err := t.exec(st, "now", t.now)
			if err != nil {
				return err
			}
			repaired += int(n)
		}
		return nil
	})
	return repaired, err
}

// EligibleTurns lists the Turns that are under way: those that want a monitor,
// whether one lives, and of the others the reason why they get none.
func (s *Store) EligibleTurns(ctx context.Context) ([]Eligible, error) {
	var (
		all     []Eligible
		prompts []string
		leases  []LeaseRow
	)
	err := s.view(ctx, func(t *tx) (err error) {
		all, err = list(t, func(r scanner) (e Eligible, err error) {
			err = r.Scan(append(append(e.Turn.dest(), e.Dispatch.dest()...), e.Binding.dest()...)...)
			return e, err
		}, turnsFollowed)
		if err != nil {
			return err
		}
		lost, err := list(t, scanTurn, turnsLost)
		for _, turn := range lost {
			all = append(all, Eligible{Turn: turn})
		}
		if err == nil {
			prompts, err = list(t, scanString, promptsOpenAll)
		}
		if err == nil {
			leases, err = leasesOf(t, "monitor/")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	over := s.holders()
	open, watched := map[string]bool{}, map[string]bool{}
	for _, id := range prompts {
		open[id] = true
	}
	for _, l := range leases {
		watched[l.Name] = s.live(l, over)
	}
	for i := range all {
		all[i].Skip = all[i].reason(open[all[i].Turn.ID])
		all[i].Watched = watched[MonitorLease(all[i].Turn.ID, all[i].Turn.CurrentMessageID)]
	}
	return all, nil
}
