package lender

import (
	"context"
	"encoding/json"
)

// Evidence gives the rows of the requests on the grant, in order.
func (loan *Loan) Evidence(ctx context.Context) ([]json.RawMessage, error) {
	return loan.l.opt.Store.Evidence(ctx, loan.ID)
}
