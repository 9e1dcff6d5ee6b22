package cli

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/spf13/cobra"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin/ui"
	"github.com/millrace-go/watermill-outbox/broker"
)

func (a *app) serve() *cobra.Command {
	var f serveFlags
	brokers := brokerFlags{both: true}
	cmd := &cobra.Command{
		Use: "serve", Short: "Serve the admin page",
		Long: `Serve the admin page, read-only by default. It has no login: if others can reach it, put a proxy with a
login in front, and set --actor-header to the header in which it passes the user. The proxy must remove
that header from incoming requests; requests without it are refused.

Behind a proxy, set --host to the name that browsers use: on a loopback address, the page accepts only
localhost and --host. With --kafka or --nats it shows findings about the broker too.`,
		Example: "  outboxctl serve --listen :8080 --actor-header X-Forwarded-User --act",
	}
	flags := cmd.Flags()
	flags.StringVar(&f.listen, "listen", "127.0.0.1:8080", "`address` to listen on")
	flags.StringVar(&f.title, "title", "Outbox", "title of the page")
	flags.BoolVar(&f.act, "act", false, "allow changes")
	flags.BoolVar(&f.payloads, "payloads", false, "show payloads")
	flags.StringVar(&f.actorHeader, "actor-header", "", "`header` with the user, set by a proxy")
	flags.StringSliceVar(&f.hosts, "host", nil, "accept only these host `names` and localhost (default: any, "+
		"if others can reach the page)")
	flags.StringVar(&f.actor, "actor", "", "name for the audit log without --actor-header (default: your user name)")
	brokers.bind(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := brokers.read(a, cmd); err != nil {
			return err
		}
		checkers, closeAll, err := brokers.checkers()
		defer closeAll()
		if err != nil {
			return &usageError{err}
		}
		f.brokers = checkers
		if err := a.fromEnv(flags, "listen", "title", "act", "payloads", "actor-header", "host"); err != nil {
			return err
		}
		if f.actor == "" {
			f.actor = a.user()
		}
		logger, err := a.logger("text", false)
		if err != nil {
			return err
		}
		return a.withDB(cmd.Context(), func(db *outbox.DB) error { return a.runPage(cmd.Context(), db, f, logger) })
	}
	return cmd
}

type serveFlags struct {
	listen, title, actorHeader, actor string
	act, payloads                     bool
	hosts                             []string
	brokers                           []broker.Checker
}

func (a *app) runPage(ctx context.Context, db *outbox.DB, f serveFlags, logger watermill.LoggerAdapter) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.listen)
	if err != nil {
		return err
	}
	alone := loopback(listener.Addr().String())
	if f.actorHeader == "" && !alone && (f.act || f.payloads) {
		return errors.Join(listener.Close(),
			usagef("--act and --payloads need --actor-header on an address that others can reach: %s", f.listen))
	}
	page, err := ui.New(db, ui.Config{
		Admin: a.adminConfig(f.actor), Title: f.title, Authorize: f.authorize, Brokers: f.brokers,
	}, logger)
	if err != nil {
		return errors.Join(listener.Close(), &usageError{err})
	}
	var handler http.Handler = page
	if alone || len(f.hosts) > 0 {
		handler = ownHost(f.hosts, page)
	}
	a.inform("http://%s/", listener.Addr().String())
	return outbox.Run(ctx, outbox.HTTPServer(&http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute,
	}, listener), page)
}

// authorize returns a user's access.
func (f serveFlags) authorize(r *http.Request) (ui.Access, error) {
	access := ui.Access{Actor: f.actor, Act: f.act, Payloads: f.payloads}
	if f.actorHeader != "" {
		if access.Actor = r.Header.Get(f.actorHeader); access.Actor == "" {
			return ui.Access{}, errors.New("request without header " + f.actorHeader)
		}
	}
	return access, nil
}

// loopback reports whether only this machine can reach an address.
func loopback(address string) bool {
	at, err := netip.ParseAddrPort(address)
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// ownHost refuses requests with other host names, as in DNS rebinding. Probes use the address of a container and read
// nothing else.
func ownHost(names []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		host = strings.Trim(host, "[]")
		known := func(name string) bool { return strings.EqualFold(name, host) }
		probe := r.URL.Path == "/health" || r.URL.Path == "/ready"
		if !probe && !known("localhost") && !loopback(net.JoinHostPort(host, "1")) && !slices.ContainsFunc(names, known) {
			http.Error(w, "unknown host name: use localhost or 127.0.0.1, or start outboxctl serve with --host and this name",
				http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}
