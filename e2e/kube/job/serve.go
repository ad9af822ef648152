package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// serve answers each event with an event of the type "echoed", which names it as its cause and has
// the same data. It ends on SIGTERM.
func serve(ctx context.Context, variable func(string) string, out io.Writer) error {
	port := variable("PORT")
	if port == "" {
		port = "8080"
	}
	l, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "listening at %s\n", l.Addr())
	server := &http.Server{Handler: echo(out), ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	// Knative's proxy still forwards requests that were under way, so they must be answered.
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := server.Shutdown(late); err != nil {
		return err
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func echo(out io.Writer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ready\n") })
	mux.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("ce-id")
		if id == "" {
			http.Error(w, "no event in binary mode: it has no ce-id", http.StatusUnsupportedMediaType)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprintf(out, "event %s of type %s\n", id, r.Header.Get("ce-type"))
		for name, value := range map[string]string{
			"ce-specversion": "1.0", "ce-type": "echoed", "ce-source": "/echo", "ce-id": "echo-" + id,
			"ce-subject": r.Header.Get("ce-subject"), "Content-Type": r.Header.Get("Content-Type"),
		} {
			if value != "" {
				w.Header().Set(name, value)
			}
		}
		_, _ = w.Write(body) // a client whose connection broke repeats the request
	})
	return mux
}
