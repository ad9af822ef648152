// Command trainer is the trainer of the bench of runs. It is a process of a few milliseconds that
// reports its key and the time of its start. It is small, because the bench measures the cost of a
// run without its trainer.
package main

import (
	"fmt"
	"net"
	"os"
	"time"
)

func main() {
	if err := train(time.Now(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "trainer:", err)
		os.Exit(1)
	}
}

func train(began time.Time, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("give the socket to tell, and not %d arguments", len(args))
	}
	c, err := net.Dial("unixgram", args[0])
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = fmt.Fprintf(c, "%s %d", os.Getenv("TIDEMILL_KEY"), began.UnixNano())
	return err
}
