package score

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"tidemill.dev/broker/embedded"
)

// childRole is the variable with the role of this program when it starts itself, so that a test
// can kill a process and a broker has a separate process.
const childRole = "TIDEMILL_SCORE_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(childRole) == "broker" {
		serveBroker()
		return
	}
	os.Exit(m.Run())
}

// Further variables of a child process.
const (
	childDir   = "TIDEMILL_SCORE_TEST_DIR"
	childKafka = "TIDEMILL_SCORE_TEST_KAFKA"
	childRedis = "TIDEMILL_SCORE_TEST_REDIS"
)

// serveBroker serves Kafka and Redis until standard input ends.
func serveBroker() {
	s, err := embedded.Start(context.Background(), embedded.Options{Dir: os.Getenv(childDir), Kafka: os.Getenv(childKafka), Redis: os.Getenv(childRedis)})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(s.Kafka(), s.Redis())
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = s.Close()
}

// child starts this program in a role and returns the words of its first line.
func child(t testing.TB, role string, env ...string) (*exec.Cmd, []string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestBeAScorer$")
	cmd.Env = append(append(os.Environ(), childRole+"="+role), env...)
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	said := bufio.NewReader(out)
	line, err := said.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, said) }()
	return cmd, strings.Fields(line)
}
