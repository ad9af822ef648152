//go:build real

package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/e2e/browser/seed"
	"tidemill.dev/internal/ops/status"
)

// All tests share one browser and one tidemill, because each takes seconds to start.
var (
	theBrowser context.Context
	theInstall *install
)

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "browser")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	stop, err := startAll(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "start the tests in a browser:", err)
		return 1
	}
	defer stop()
	code := m.Run()
	if errors := theInstall.logged(); len(errors) > 0 {
		fmt.Fprintf(os.Stderr, "tidemill has logged %d errors, such as %s", len(errors), errors[0])
		return 1
	}
	return code
}

// startAll starts the install and the browser next to each other.
func startAll(dir string) (stop func(), err error) {
	began := time.Now()
	theInstall = &install{dir: filepath.Join(dir, "install"), url: os.Getenv("TIDEMILL_BROWSER_URL")}
	started := make(chan error, 1)
	go func() { started <- theInstall.start(context.Background(), filepath.Join(dir, "tidemill")) }()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("chromium-headless-shell"), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.UserDataDir(filepath.Join(dir, "profile")), chromedp.Flag("js-flags", "--expose-gc"))
	all, endAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	var end context.CancelFunc
	theBrowser, end = chromedp.NewContext(all)
	err = chromedp.Do(theBrowser)
	if err != nil {
		err = fmt.Errorf("start Chromium: %w; .ci/real-servers-install installs it", err)
	}
	err = errors.Join(err, <-started)
	stop = func() {
		end()
		endAllocator()
		theInstall.stop()
	}
	if err != nil {
		stop()
		return nil, err
	}
	fmt.Printf("the install and the browser are ready after %s; tidemill up printed its address after %s\n", time.Since(began).Round(time.Millisecond), theInstall.took.Round(time.Millisecond))
	return stop, nil
}

// install is a running tidemill on a copy of a seeded folder.
type install struct {
	dir    string
	url    string
	kafka  string        // address of its Kafka
	redis  string        // address of its Redis
	binary string        // path of the built tidemill
	flags  []string      // more flags of tidemill up
	token  string        // token for all requests; empty without an access file
	took   time.Duration // time until it printed its address
	cmd    *exec.Cmd
}

// addressLine is a line of tidemill up with the address of its gateway, its Kafka or its Redis.
var addressLine = regexp.MustCompile(`^  (http|kafka|redis) +(\S+)$`)

// start makes the install run. With TIDEMILL_BROWSER_URL the tests show a gateway that runs already, so a
// person who changes a page need not wait for a start.
func (i *install) start(ctx context.Context, binary string) error {
	i.binary = binary
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "tidemill.dev/cmd/tidemill")
	build.Dir = filepath.Join("..", "..") // the product's own module has its dependencies
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build tidemill: %w: %s", err, out)
	}
	if i.url == "" {
		if err := i.copy(ctx, seed.Full); err != nil {
			return err
		}
		if err := i.up(ctx); err != nil {
			return err
		}
		if err := i.observe(ctx); err != nil {
			return err
		}
	} else if err := i.ready(ctx); err != nil {
		return err
	}
	return i.putData(ctx)
}

func (i *install) copy(ctx context.Context, size seed.Size) error {
	from, err := seed.Folder(ctx, size)
	if err != nil {
		return err
	}
	return seed.Copy(from, i.dir)
}

// putData commits files to a dataset twice, because the seed writes no objects.
func (i *install) putData(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "files")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for file, text := range map[string]string{"bot.json": `{"bot": "bot-00042", "language": "en"}`, "notes.md": "# Questions about refunds\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			return err
		}
	}
	for _, text := range []string{"text,intent\nHow much is it?,price\n", "text,intent\nHow much is it?,price\nWhere is my order?,delivery\n\"I want my money back, please\",refund\n<b>now</b>,refund\n"} {
		if err := os.WriteFile(filepath.Join(dir, "messages.csv"), []byte(text), 0o600); err != nil {
			return err
		}
		if _, err := i.run(ctx, "data", "put", "bots/bot-00042", dir, "-m", "nightly import", "--url", i.url); err != nil {
			return err
		}
	}
	return nil
}

// observe publishes the states of the running trials until the tests end, as an observer does.
func (i *install) observe(ctx context.Context) error {
	data := filepath.Join(i.dir, "data")
	password, err := os.ReadFile(embedded.RedisPasswordFile(data))
	if err != nil {
		return fmt.Errorf("publish the trials: %w", err)
	}
	b, err := broker.Open(ctx, broker.Options{Addr: i.kafka, Security: broker.Security{Mechanism: embedded.Mechanism, User: embedded.UserName, PasswordFile: embedded.KafkaPasswordFile(data)}})
	if err != nil {
		return fmt.Errorf("publish the trials: %w", err)
	}
	cluster, err := b.Cluster(ctx)
	b.Close()
	if err != nil {
		return fmt.Errorf("publish the trials: %w", err)
	}
	names, err := tidemill.NewNames("")
	if err != nil {
		return err
	}
	all := seed.Trials(seed.Full)
	board := status.NewTrials(redis.NewClient(&redis.Options{Addr: i.redis, Password: strings.TrimSpace(string(password))}), names, cluster)
	go board.Publish(ctx, "intents", func() []api.Trial { return all })
	return nil
}

// run runs a command of tidemill in the install's folder, and returns its output.
func (i *install) run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, i.binary, args...)
	if _, err := os.Stat(i.dir); err == nil {
		cmd.Dir = i.dir
	}
	var faults strings.Builder
	cmd.Stderr = &faults
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("tidemill %s: %w: %s", args[0], err, faults.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// up starts tidemill and waits until it has read all facts. After a first start it listens at the same
// address again.
func (i *install) up(ctx context.Context) error {
	if err := i.listen(ctx); err != nil {
		return err
	}
	return i.ready(ctx)
}

// listen starts tidemill and waits until it has printed its address.
func (i *install) listen(ctx context.Context) error {
	began := time.Now()
	at := cmp.Or(strings.TrimPrefix(i.url, "http://"), "127.0.0.1:0")
	i.url = ""
	i.cmd = exec.CommandContext(ctx, i.binary, append([]string{"up", "--data", "data", "--kafka-port", "0", "--redis-port", "0", "--listen", at}, i.flags...)...)
	i.cmd.Dir = i.dir
	i.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := os.Create(filepath.Join(i.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	i.cmd.Stderr = log
	out, err := i.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := i.cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	found := map[string]string{}
	for len(found) < 3 && lines.Scan() {
		if m := addressLine.FindStringSubmatch(lines.Text()); m != nil {
			found[m[1]] = m[2]
		}
	}
	i.url, i.kafka, i.redis, i.took = found["http"], found["kafka"], found["redis"], time.Since(began)
	if len(found) < 3 {
		text, _ := os.ReadFile(filepath.Join(i.dir, "log"))
		return fmt.Errorf("tidemill up ended: %s", text)
	}
	go io.Copy(io.Discard, out)
	return nil
}

// ready waits until the gateway lists models, which it does once it has read all facts.
func (i *install) ready(ctx context.Context) error {
	for ctx.Err() == nil {
		status, _, err := i.ask(ctx, http.MethodGet, "/api/v1/models?limit=1", "")
		if err != nil {
			return fmt.Errorf("ask the gateway: %w", err)
		}
		if status == http.StatusOK {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return ctx.Err()
}

// ask sends a request to the gateway.
func (i *install) ask(ctx context.Context, method, path, body string) (status int, answer string, err error) {
	r, err := http.NewRequestWithContext(ctx, method, i.url+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Content-Type", "application/json")
	if path == "/events" {
		r.Header.Set("Content-Type", "application/cloudevents-batch+json")
	}
	if i.token != "" {
		r.Header.Set("Authorization", "Bearer "+i.token)
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	return got.StatusCode, string(text), err
}

func (i *install) stop() {
	if i.cmd != nil && i.cmd.Process != nil {
		_ = i.cmd.Process.Signal(os.Interrupt)
		_ = i.cmd.Wait()
	}
}

// logged returns the lines of tidemill's log with an error or a panic. There are none if the
// gateway is not ours.
func (i *install) logged() (all []string) {
	text, _ := os.ReadFile(filepath.Join(i.dir, "log"))
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "level=ERROR") || strings.Contains(line, "panic") {
			all = append(all, line)
		}
	}
	return all
}
