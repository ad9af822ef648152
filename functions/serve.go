package functions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const (
	defaultPort = "8080"
	// drainFor is shorter than the 30 s that Kubernetes gives a pod to stop.
	drainFor = 25 * time.Second
	// idleFor is longer than the dispatcher keeps a connection, so that it never
	// posts on one that is just being closed.
	idleFor    = 2 * time.Minute
	headerFor  = 10 * time.Second
	readFor    = time.Minute
	maxHeaders = 1 << 20 // bytes
)

// Serve is the main of a function's program: it serves f on the port in $PORT,
// else 8080, over HTTP/1.1 and HTTP/2 without TLS, as Knative and Tidemill
// call it, and tells on /healthz that it does. It returns when the context ends
// or the process is told to stop (SIGTERM, Ctrl-C), after the calls under way
// have been answered.
func Serve(ctx context.Context, f Func) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	port := os.Getenv("PORT")
	if port == "" {
		port = defaultPort
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("", port))
	if err != nil {
		return fmt.Errorf("serve the function: %w: set PORT to a port that is free", err)
	}
	return serve(ctx, l, f, slog.Default())
}

func serve(ctx context.Context, l net.Listener, f Func, logger *slog.Logger) error {
	mux := http.NewServeMux()
	mux.Handle("/", Handler(f, Options{Logger: logger}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok") })
	server := &http.Server{Handler: mux, Protocols: new(http.Protocols), ReadHeaderTimeout: headerFor, ReadTimeout: readFor,
		IdleTimeout: idleFor, MaxHeaderBytes: maxHeaders, ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelWarn)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	logger.Info("the function is up", "to", l.Addr().String())
	select {
	case err := <-ended:
		return fmt.Errorf("serve the function: %w", err)
	case <-ctx.Done():
	}
	return drain(context.WithoutCancel(ctx), server, ended, logger)
}

// drain waits for the calls under way. What is cut off after that comes again.
func drain(ctx context.Context, server *http.Server, ended <-chan error, logger *slog.Logger) error {
	logger.Info("the function stops when its calls have ended")
	ctx, cancel := context.WithTimeout(ctx, drainFor)
	defer cancel()
	err := server.Shutdown(ctx)
	if err != nil {
		err = fmt.Errorf("stop the function: calls still ran after %s and were cut off: %w", drainFor, err)
	}
	err = errors.Join(err, server.Close())
	<-ended
	return err
}
