package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

// attempt is the state of an attempt under way.
type attempt struct {
	o         Options
	client    *client
	ends      *endContexts
	dirs      folders
	order     api.Order
	equipment Equipment

	log         *logbook
	checkpoints checkpoints
	party       party
	clock       clock
	ooms        ooms // the container's counts at the command's start

	where   tidemill.Where
	stages  []tidemill.Stage
	telling atomic.Bool      // whether the end is being reported
	told    tidemill.Outcome // outcome that was reported; empty until then
	ending  *ending          // nil until the command has ended
	peak    int64
	seconds float64 // running time of the command
	metrics map[string]float64
	made    []api.File // output files that are uploaded
}

// Run does one attempt. An error means that the agent could not report the attempt's end. The
// report says how the command ended.
func Run(ctx context.Context, o Options) error {
	_, err := doAttempt(ctx, o)
	return err
}

// doAttempt does one attempt and returns the outcome that it reported.
func doAttempt(ctx context.Context, o Options) (tidemill.Outcome, error) {
	a := &attempt{o: o.withDefaults(), ends: newEnds(ctx), dirs: folders{o.Work}}
	a.party = newParty(&a.o)
	defer a.ends.close()
	a.client = newClient(&a.o, func() { a.ends.die(ErrSuperseded) })
	a.where.Node = o.Node
	err := a.begin()
	stop := a.beat()
	defer stop()
	if err == nil {
		err = a.work()
	}
	err = a.report(err)
	if !a.party.isFirst() && errors.Is(err, ErrSuperseded) {
		err = nil // the first worker has reported the end, so the other workers end with success too
	}
	return a.told, errors.Join(err, a.tidy())
}

// begin gets the order and the folders.
func (a *attempt) begin() error {
	a.log = newLogbook(a.ends.logs, a.client, 0, a.o.Now)
	a.log.part = a.party.name()
	a.client.newUntil = time.Now().Add(unknownFor)
	err := a.client.send(a.ends.work, request{}, decodeInto(&a.order))
	a.client.newUntil = time.Time{}
	if err != nil {
		return fmt.Errorf("ask what to do: %w", err)
	}
	a.log.most = a.order.Plan.MaxLog
	if err := a.dirs.create(); err != nil {
		return fmt.Errorf("make the folders of the attempt: %w", err)
	}
	return nil
}

// tidy removes the attempt's folders.
func (a *attempt) tidy() error {
	if err := a.dirs.remove(); err != nil {
		return fmt.Errorf("remove the folders of the attempt: %w", err)
	}
	return nil
}

// work does everything between the order and the report of the end.
func (a *attempt) work() error {
	if err := a.equip(); err != nil {
		return err
	}
	a.clock = newClock(a.order.Plan.Deadline, a.ends.end)
	a.clock.run()
	defer a.clock.pause()
	if err := a.stage("fetch", func() error { return a.fetch(a.ends.work) }); err != nil {
		return err
	}
	if err := a.gather(); err != nil {
		return err
	}
	err := a.stage("run", a.run)
	a.clock.pause()
	if !a.party.isFirst() {
		return err // only the first worker uploads output
	}
	if a.ending != nil && a.ends.earlyEnd() == nil {
		a.disperse()
	}
	if err != nil {
		return err
	}
	return a.checkAndUpload()
}

// clock enforces the deadline. Fetching and the command share one deadline; the upload afterwards
// has a deadline of the same length.
type clock struct {
	whole, left time.Duration
	end         context.CancelCauseFunc
	timer       *time.Timer
	from        time.Time
}

func newClock(d time.Duration, end context.CancelCauseFunc) clock {
	if d <= 0 {
		d = 1 << 62
	}
	return clock{whole: d, left: d, end: end}
}

// run starts the clock.
func (c *clock) run() {
	c.from = time.Now()
	c.timer = time.AfterFunc(c.left, func() { c.end(&deadlinePassed{c.whole}) })
}

// pause stops the clock until it runs again.
func (c *clock) pause() {
	if c.timer != nil {
		c.timer.Stop()
		c.left -= time.Since(c.from)
		c.timer = nil
	}
}

// equip waits for the machine's equipment, such as GPUs.
func (a *attempt) equip() (err error) {
	a.equipment, err = a.o.Equip(a.ends.work, a.order.Plan)
	if err != nil {
		return &fault{permanent: !errors.Is(err, ErrPassing), err: err}
	}
	a.where.Card, a.where.GPUs, a.where.Image = a.equipment.Card, a.equipment.GPUs, a.equipment.Image
	a.where.Driver = a.equipment.Driver
	return nil
}

// checkAndUpload checks and uploads the command's output. If the machine stops, the upload goes on
// for a while. A cancellation ends the upload at once.
func (a *attempt) checkAndUpload() error {
	if err := a.checkModel(); err != nil {
		return err
	}
	if err := a.readMetrics(); err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(a.ends.save)
	defer end(nil)
	c := newClock(a.order.Plan.Deadline, end)
	c.run()
	defer c.pause()
	defer context.AfterFunc(a.ends.work, func() {
		if errors.As(a.ends.earlyEnd(), new(*runCancelled)) {
			end(a.ends.earlyEnd())
		}
	})()
	err := a.stage("upload", func() error { return a.upload(ctx) })
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// folders are the folders of an attempt. Creating one costs more than anything else that a trivial
// run needs from the file system, so each folder is created only if needed.
type folders struct{ work string }

func (f folders) in() string         { return filepath.Join(f.work, "in") }
func (f folders) out() string        { return filepath.Join(f.work, "out") }
func (f folders) checkpoint() string { return filepath.Join(f.work, "checkpoint") }
func (f folders) champion() string   { return filepath.Join(f.work, "champion") }
func (f folders) event() string      { return filepath.Join(f.work, "event.json") }
func (f folders) events() string     { return filepath.Join(f.work, "events.ndjson") }

// create creates the folders, except that of the champion. If an attempt with the same name was
// killed, create first removes the folders of that attempt.
func (f folders) create() error {
	if err := f.remove(); err != nil {
		return err
	}
	err := os.Mkdir(f.work, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.MkdirAll(f.work, 0o700)
	}
	for _, dir := range []string{f.in(), f.out(), f.checkpoint()} {
		if err == nil {
			err = os.Mkdir(dir, 0o755)
		}
	}
	return err
}

// remove removes all folders.
func (f folders) remove() error {
	for _, dir := range []string{f.in(), f.checkpoint()} {
		_ = os.Remove(dir) // usually empty, and then this is fastest
	}
	return RemoveFolder(f.work)
}

// RemoveFolder removes a folder. If that fails for a read-only folder, such as that of an input, it makes all
// folders writable and tries again.
func RemoveFolder(folder string) error {
	err := os.RemoveAll(folder)
	if err == nil || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	_ = filepath.WalkDir(folder, func(name string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(name, 0o700) // the second RemoveAll returns any error
		}
		return nil
	})
	return os.RemoveAll(folder)
}

// lock makes fetched files and their folders read-only.
func lock(root string, files []api.File) error {
	folders := map[string]bool{root: true}
	for i := range files {
		at := filepath.Join(root, filepath.FromSlash(files[i].Path))
		mode := fs.FileMode(0o444)
		if files[i].Executable {
			mode = 0o555
		}
		if err := os.Chmod(at, mode); err != nil {
			return err
		}
		for dir := filepath.Dir(at); !folders[dir]; dir = filepath.Dir(dir) {
			folders[dir] = true
		}
	}
	for dir := range folders {
		if err := os.Chmod(dir, 0o555); err != nil {
			return err
		}
	}
	return nil
}

// Options configures the agent of one attempt.
type Options struct {
	Gateway string // URL
	Token   string
	Attempt string // name of the attempt
	Work    string // folder of this attempt only; removed at the end
	Cache   string // folder that attempts share
	HTTP    *http.Client
	Node    string
	// Inside says that the agent runs in the plan's image. The command then runs in this
	// container, with its variables and in its folder.
	Inside bool
	Cgroup string // folder of the container's control group; empty is Linux's default
	// Part is the role of this agent if several agents work on the attempt; empty means Worker.
	// Index is the agent's number within the role. Workers and Servers are the addresses
	// (host:port) of all agents; if both are empty, there is only this agent.
	Part             string
	Index            int
	Workers, Servers []string
	Echo             func(stream string, data []byte) // receiver of the command's output as it comes; nil is none
	// Equip returns the machine's equipment for the attempt. It may wait, for example for a free
	// GPU: the attempt sends beats meanwhile, and its deadline does not run. An error ends the run
	// for good, unless it is ErrPassing. Nil means no equipment.
	Equip func(context.Context, tidemill.Plan) (Equipment, error)
	// Started is called when the command's process runs. Ended is called when the process and its
	// group have ended.
	Started, Ended func(pid int)
	Prepare        func(*exec.Cmd) // last change to the child before its start; nil is none
	// Play plays the command in this process, for a simulation; nil starts a child. It writes to the command's Stdout
	// and Stderr, and returns the exit status. SIGTERM ends asked, and SIGKILL ends both contexts.
	Play   func(killed, asked context.Context, cmd *exec.Cmd) (exit int)
	Now    func() time.Time
	Logger *slog.Logger
}

// Equipment is a machine's contribution to an attempt.
type Equipment struct {
	Env    []string // NAME=VALUE, in addition to the contract's: secrets, GPUs
	Card   string   // product name of the GPU
	Driver string   // version of the GPU's driver
	GPUs   []int
	Engine string   // path of docker or podman, for an image
	Labels []string // NAME=VALUE labels of the container
	Image  string   // digest of the folder that runs
}

// withDefaults sets defaults for empty fields.
func (o Options) withDefaults() Options {
	if o.Part == "" {
		o.Part = Worker
	}
	if o.Cgroup == "" {
		o.Cgroup = "/sys/fs/cgroup"
	}
	if o.Echo == nil {
		o.Echo = func(string, []byte) {}
	}
	if o.HTTP == nil {
		o.HTTP = http.DefaultClient
	}
	if o.Equip == nil {
		o.Equip = func(context.Context, tidemill.Plan) (Equipment, error) { return Equipment{}, nil }
	}
	if o.Started == nil {
		o.Started = func(int) {}
	}
	if o.Ended == nil {
		o.Ended = func(int) {}
	}
	if o.Prepare == nil {
		o.Prepare = func(*exec.Cmd) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Card is a GPU.
type Card struct {
	Index           int
	Product, Driver string
}

const askCards = 20 * time.Second // an idle driver is slow to answer

// LookForCards lists the GPUs with nvidia-smi. A machine without nvidia-smi has no cards.
func LookForCards(ctx context.Context) ([]Card, error) {
	program, err := exec.LookPath("nvidia-smi")
	if err != nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askCards)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--query-gpu=index,name,driver_version", "--format=csv,noheader")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("ask nvidia-smi for the GPUs: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return ReadCards(string(out))
}

// ReadCards reads the output of nvidia-smi: a line with index, product and driver for each GPU.
func ReadCards(text string) (all []Card, err error) {
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSpace(line), ", ")
		if len(fields) == 1 && fields[0] == "" {
			continue
		}
		index, err := strconv.Atoi(fields[0])
		if err != nil || len(fields) != 3 {
			return nil, fmt.Errorf("read the output of nvidia-smi: %q does not have index, product and driver", line)
		}
		all = append(all, Card{index, fields[1], fields[2]})
	}
	return all, nil
}

// InPod returns the equipment of a pod: the GPUs that the pod was given. If nvidia-smi fails, the
// attempt runs without that information.
func InPod(ctx context.Context, p tidemill.Plan) (e Equipment, err error) {
	if p.GPUs == 0 {
		return e, nil
	}
	cards, err := LookForCards(ctx)
	for _, c := range cards {
		e.GPUs, e.Card, e.Driver = append(e.GPUs, c.Index), c.Product, c.Driver
	}
	if err != nil && ctx.Err() != nil {
		return e, err
	}
	return e, nil
}
