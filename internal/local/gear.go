package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"tidemill.dev"
	"tidemill.dev/internal/agent"
)

// cookieName is the variable by which our processes are found.
const cookieName = "TIDEMILL_COOKIE"

// gear is what an attempt was given, to be given back.
type gear struct {
	l     *Launcher
	deal  *deal
	index int  // of the worker
	none  bool // a parameter server has no cards
	cards []card
}

// equip gives an attempt what the machine has for it. What can be wrong is
// looked at before anything is waited for.
func (g *gear) equip(ctx context.Context, p tidemill.Plan) (e agent.Equipment, err error) {
	e.Env, err = secrets(g.l.o.Secrets, p.Secrets)
	if err != nil {
		return e, err
	}
	e.Env = append(e.Env, cookieName+"="+g.l.cookie)
	if p.Image == "" {
		e.Image = g.l.folders.of(p.Dir)
	} else if err := g.contain(ctx, &e); err != nil {
		return e, err
	}
	if !g.none {
		if g.cards, err = g.deal.take(ctx, g.index, p.GPUs); err != nil {
			return e, err
		}
	}
	for _, c := range g.cards {
		e.GPUs, e.Card, e.Driver = append(e.GPUs, c.index), c.product, c.driver
	}
	if p.Image == "" {
		e.Env = append(e.Env, g.l.cards.visible(g.cards)...)
	}
	return e, nil
}

func (g *gear) contain(ctx context.Context, e *agent.Equipment) (err error) {
	if e.Engine, err = g.l.engine.find(ctx); err != nil {
		return err
	}
	e.Labels = []string{cookieLabel + "=" + g.l.cookie}
	g.l.guard.engine(e.Engine)
	return (legacy{Cookie: g.l.cookie, Engine: e.Engine}).leave(g.l.o.Dir)
}

const maxSecret = 64 << 10

// secrets reads those that a run names, each as a variable. A file beneath the
// folder is one, without the newline at its end.
func secrets(dir string, named map[string]string) (env []string, err error) {
	if len(named) == 0 {
		return nil, nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("read the secrets of the run: %w: make the folder, and in it a file NAME/KEY for each", err)
	}
	defer root.Close()
	for variable, ref := range named {
		text, err := secret(root, ref)
		if err != nil {
			return nil, fmt.Errorf("secret %s for %s: %w: write it into %s", ref, variable, err, filepath.Join(dir, filepath.FromSlash(ref)))
		}
		env = append(env, variable+"="+text)
	}
	return env, nil
}

func secret(root *os.Root, ref string) (string, error) {
	f, err := root.Open(filepath.FromSlash(ref))
	if err != nil {
		return "", inner(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err == nil && len(text) > maxSecret {
		err = fmt.Errorf("it is longer than %d bytes", maxSecret)
	}
	return strings.TrimRight(string(text), "\r\n"), inner(err)
}

// inner is an error without the path, which is told elsewhere.
func inner(err error) error {
	if p := new(os.PathError); errors.As(err, &p) {
		return p.Err
	}
	return err
}
