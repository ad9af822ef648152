package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

var errHelp = errors.New("help is wanted")

// flagSet is a command's flags. The standard package keeps and converts them;
// reading the arguments is ours, because flags may stand behind arguments too,
// and because an unknown one deserves better than a list of all.
type flagSet struct {
	command string
	set     *flag.FlagSet
	env     map[string]string // flag → variable that stands for it
	values  map[string]string // flag → what help calls its value
	order   []string          // as help lists them
	short   map[string]string // long → short
	given   map[string]bool   // by their long names, once parsed
}

func newFlagSet(command string) *flagSet {
	set := flag.NewFlagSet(command, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	return &flagSet{command: command, set: set, env: map[string]string{}, values: map[string]string{}, short: map[string]string{}, given: map[string]bool{}}
}

// text adds a flag with a value, under its long name and, if there is one, its
// short one. What p points at is the default.
func (f *flagSet) text(p *string, long, short, value, usage string) {
	f.set.StringVar(p, long, *p, usage)
	f.note(long, short, value)
	if short != "" {
		f.set.StringVar(p, short, *p, usage)
	}
}

func (f *flagSet) number(p *int, long, short, value, usage string) {
	f.set.IntVar(p, long, *p, usage)
	f.note(long, short, value)
	if short != "" {
		f.set.IntVar(p, short, *p, usage)
	}
}

func (f *flagSet) span(p *time.Duration, long, value, usage string) {
	f.set.DurationVar(p, long, *p, usage)
	f.note(long, "", value)
}

func (f *flagSet) yes(p *bool, long, usage string) {
	f.set.BoolVar(p, long, *p, usage)
	f.note(long, "", "")
}

// yesOr is yes with a short name too.
func (f *flagSet) yesOr(p *bool, long, short, usage string) {
	f.set.BoolVar(p, long, *p, usage)
	f.set.BoolVar(p, short, *p, usage)
	f.note(long, short, "")
}

// each adds a flag that may be given several times.
func (f *flagSet) each(long, value, usage string, take func(string) error) {
	f.set.Func(long, usage, take)
	f.note(long, "", value)
}

func (f *flagSet) note(long, short, value string) {
	f.order = append(f.order, long)
	f.values[long] = value
	if short != "" {
		f.short[long] = short
	}
}

// fromEnv lets a variable stand for a flag that is not given.
func (f *flagSet) fromEnv(long, variable string) { f.env[long] = variable }

// parse reads the arguments and returns those that are no flags.
func (f *flagSet) parse(args []string, getenv func(string) string) ([]string, error) {
	var positional []string
	for i := 0; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			positional = append(positional, args[i+1:]...)
			break
		}
		if a == "-" || !strings.HasPrefix(a, "-") {
			positional = append(positional, a)
			continue
		}
		used, err := f.take(a, args[i+1:])
		if err != nil {
			return nil, err
		}
		name, _ := cutFlag(a)
		f.given[f.long(name)] = true
		i += used
	}
	return positional, f.readEnv(getenv)
}

// take sets one flag and says how many of the arguments behind it it used.
func (f *flagSet) take(arg string, behind []string) (used int, err error) {
	name, value := cutFlag(arg)
	def := f.set.Lookup(name)
	switch {
	case def == nil && (name == "h" || name == "help"):
		return 0, errHelp
	case def == nil:
		return 0, f.unknown(arg)
	case value == nil && isBool(def):
		yes := "true"
		value = &yes
	case value == nil && len(behind) == 0:
		return 0, usagef("%s needs a value: %s", arg, def.Usage)
	case value == nil:
		value, used = &behind[0], 1
	}
	if err := def.Value.Set(*value); err != nil {
		return 0, usagef("%s %q: %v", dashed(name), *value, plain(def, err))
	}
	return used, nil
}

// readEnv sets what has a variable and was not given.
func (f *flagSet) readEnv(getenv func(string) string) error {
	for _, long := range f.order {
		variable, ok := f.env[long]
		if !ok || f.given[long] {
			continue
		}
		value := strings.TrimSpace(getenv(variable))
		if value == "" {
			continue
		}
		def := f.set.Lookup(long)
		if err := def.Value.Set(value); err != nil {
			return usagef("the variable %s %q: %v", variable, value, plain(def, err))
		}
	}
	return nil
}

func (f *flagSet) long(name string) string {
	for long, short := range f.short {
		if short == name {
			return long
		}
	}
	return name
}

func (f *flagSet) unknown(arg string) error {
	name, _ := cutFlag(arg)
	known, near := slices.Clone(f.order), ""
	shown := dashed(name)
	if strings.HasPrefix(arg, "--") { // no slip of a short one
		shown = "--" + name
		known = slices.DeleteFunc(known, func(k string) bool { return len(k) == 1 })
	}
	if n, ok := nearest(name, known); ok {
		near = " did you mean " + dashed(n) + "?"
	}
	help := "tidemill help"
	if f.command != "" {
		help += " " + f.command
	}
	return usagef("there is no flag %s:%s %s lists those there are", shown, near, help)
}

// cutFlag splits --name=value; the value is nil if there is no =.
func cutFlag(arg string) (name string, value *string) {
	arg = strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-")
	name, v, ok := strings.Cut(arg, "=")
	if ok {
		return name, &v
	}
	return name, nil
}

func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

func isBool(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

func isSpan(f *flag.Flag) bool {
	g, ok := f.Value.(flag.Getter)
	if !ok {
		return false
	}
	_, ok = g.Get().(time.Duration)
	return ok
}

// plain says what the standard package means by its parse error.
func plain(f *flag.Flag, err error) error {
	switch {
	case err.Error() == "parse error" && isBool(f):
		return errors.New("give true or false")
	case err.Error() == "parse error" && isSpan(f):
		return errors.New("give a duration such as 500ms or 5s")
	case err.Error() == "parse error":
		return errors.New("give a number")
	case err.Error() == "value out of range":
		return errors.New("is too large")
	}
	return err
}

// usageError is a slip in the call itself.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }
