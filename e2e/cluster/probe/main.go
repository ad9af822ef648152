// Command probe runs in the pods of the cluster's own tests. It serves HTTP, or sends a request and
// prints the answer.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 0:
		return serve(ctx)
	case len(args) == 2 && args[0] == "get":
		return get(ctx, args[1])
	case len(args) == 2 && args[0] == "lookup":
		addresses, err := net.DefaultResolver.LookupHost(ctx, args[1])
		fmt.Println(addresses)
		return err
	}
	return errors.New("usage: probe [get URL | lookup NAME]")
}

// serve answers with its pod's name and the requested host, until its context ends.
func serve(ctx context.Context) error {
	pod, err := os.Hostname()
	if err != nil {
		return err
	}
	server := &http.Server{Addr: ":8080", Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello from %s as %s\n", pod, r.Host)
	})}
	ends := make(chan error, 1)
	go func() { ends <- server.ListenAndServe() }()
	select {
	case err := <-ends:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return server.Shutdown(last)
}

func get(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	fmt.Printf("%s: %s", answer.Status, body)
	return err
}
