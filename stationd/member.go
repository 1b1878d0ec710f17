package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strconv"
	"time"

	"drawbridge/shared/service"
	"drawbridge/stationd/internal/control"
)

func memberCommand(stdout io.Writer) *service.Command {
	var f clientFlags
	show := func(all control.MemberList) error {
		if f.asJSON {
			return printJSON(stdout, all)
		}
		rows := [][]string{{"PRINCIPAL", "NAME", "ROLE", "SINCE", "REVOKED"}}
		for _, m := range all.Members {
			rows = append(rows, []string{m.PrincipalID, m.Name, m.Role, when(&m.GrantedAt, time.Now()), when(m.RevokedAt, time.Now())})
		}
		return table(stdout, rows...)
	}
	return &service.Command{
		Name: "member", Short: "Say who may do what on a station",
		Commands: []*service.Command{
			ask(&f, service.Command{
				Name: "grant", Args: "<station id> <principal id> owner|manager|viewer", MinArgs: 3, Short: "Give a role",
				Long: "Owners and managers start, stop, take out tickets and use the bridge; owners also give roles;\n" +
					"viewers see status and evidence.",
			}, nil, func(ctx context.Context, c *control.Client, args []string) error {
				all, err := c.Grant(ctx, args[0], args[1], args[2])
				if err != nil {
					return err
				}
				return show(all)
			}),
			ask(&f, service.Command{
				Name: "revoke", Args: "<station id> <principal id>", MinArgs: 2, Short: "Take a role away, and the tickets with it",
			}, nil, func(ctx context.Context, c *control.Client, args []string) error {
				all, err := c.RevokeRole(ctx, args[0], args[1])
				if err != nil {
					return err
				}
				return show(all)
			}),
			ask(&f, service.Command{
				Name: "list", Args: "<station id>", MinArgs: 1, Short: "List who has or had a role",
			}, nil, func(ctx context.Context, c *control.Client, args []string) error {
				all, err := c.Members(ctx, args[0])
				if err != nil {
					return err
				}
				return show(all)
			}),
		},
	}
}

func principalCommand(stdout io.Writer) *service.Command {
	var f clientFlags
	uid := int64(-1)
	return &service.Command{
		Name: "principal", Short: "Look after identities",
		Commands: []*service.Command{
			ask(&f, service.Command{
				Name: "add", Args: "<name>", MinArgs: 1, Short: "Add an identity",
				Long: "add prints the secret of the new principal, this one time; it goes into the header Authorization:\n" +
					"Bearer. With -uid the principal is a local user instead, who needs none.",
			}, func(fs *flag.FlagSet) {
				fs.Int64Var(&uid, "uid", -1, "`number` of a local user")
			}, func(ctx context.Context, c *control.Client, args []string) error {
				q := control.PrincipalRequest{Name: args[0]}
				if uid >= 0 {
					q.UID = &uid
				}
				p, err := c.AddPrincipal(ctx, q)
				if err != nil {
					return err
				}
				if f.asJSON {
					return printJSON(stdout, p)
				}
				rows := [][]string{{"principal", p.PrincipalID}}
				if p.Secret != "" {
					rows = append(rows, []string{"secret", p.Secret})
				}
				return table(stdout, rows...)
			}),
			ask(&f, service.Command{
				Name: "revoke", Args: "<principal id>", MinArgs: 1, Short: "End an identity, its tickets and its open streams",
			}, nil, func(ctx context.Context, c *control.Client, args []string) error {
				p, err := c.RevokePrincipal(ctx, args[0])
				if err != nil {
					return err
				}
				if f.asJSON {
					return printJSON(stdout, p)
				}
				_, err = fmt.Fprintf(stdout, "principal %s is revoked\n", p.PrincipalID)
				return err
			}),
			ask(&f, service.Command{
				Name: "list", Short: "List identities, former ones too",
			}, nil, func(ctx context.Context, c *control.Client, _ []string) error {
				all, err := c.Principals(ctx)
				if err != nil {
					return err
				}
				if f.asJSON {
					return printJSON(stdout, all)
				}
				rows := [][]string{{"PRINCIPAL", "NAME", "ORG", "KNOWN BY", "SINCE", "REVOKED"}}
				for _, p := range all.Principals {
					by := "secret"
					if p.UID != nil {
						by = "uid " + strconv.FormatInt(*p.UID, 10)
					}
					rows = append(rows, []string{p.PrincipalID, p.Name, p.Org, by, when(&p.CreatedAt, time.Now()), when(p.RevokedAt, time.Now())})
				}
				return table(stdout, rows...)
			}),
		},
	}
}
