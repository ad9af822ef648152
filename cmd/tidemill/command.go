package main

import (
	"cmp"
	"context"
	"slices"
	"strings"
)

// program is one call of a subcommand. Its fields are its flags.
type program interface {
	flags(*flagSet)
	accept(positional []string) error // what flags and arguments do not go together
	run(ctx context.Context, s *session, positional []string) error
}

// command is a subcommand as help tells of it.
type command struct {
	name     string // several words if it is one of a group
	args     string // positional ones
	summary  string // one line
	about    string // what help NAME adds
	examples []example
	make     func() program
}

// example is a line that a test parses, and what it does.
type example struct{ line, does string }

func commands() []command {
	return []command{
		upCommand(), publishCommand(), tailCommand(), streamsCommand(),
		serveCommand(), validateCommand(), tokenNewCommand(), tokenListCommand(), tokenRemoveCommand(),
		demoCommand(), versionCommand(), helpCommand(),
	}
}

func commandNames() []string {
	var names []string
	for _, c := range commands() {
		names = append(names, c.name)
	}
	return names
}

func findCommand(name string) (command, error) {
	all := commands()
	i := slices.IndexFunc(all, func(c command) bool { return c.name == name })
	if i >= 0 {
		return all[i], nil
	}
	if group := groupOf(name); len(group) > 0 {
		return command{}, usagef("%s is several commands: %s; tidemill help %s lists them", name, strings.Join(group, ", "), name)
	}
	return command{}, usagef("there is no command %q:%s tidemill help lists those there are", name, didYouMean(name, commandNames()))
}

// groupOf lists the commands that begin with a word and go on with another.
func groupOf(word string) []string {
	return slices.DeleteFunc(commandNames(), func(name string) bool { return !strings.HasPrefix(name, word+" ") })
}

// parse reads a call's flags and arguments into a program.
func (c command) parse(args []string, getenv func(string) string) (program, []string, error) {
	p := c.make()
	f := newFlagSet(c.name)
	p.flags(f)
	positional, err := f.parse(args, getenv)
	if err != nil {
		return nil, nil, err
	}
	return p, positional, p.accept(positional)
}

// splitCommand takes the command's name out of the arguments: a word, or two if
// the first is a group's. Flags may stand before it, so those that every command
// knows tell which word is a value.
func splitCommand(args []string) (name string, rest []string, err error) {
	known := newFlagSet("")
	new(reach).flags(known)
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-h" || a == "--help" || a == "-help":
			return "help", strings.Fields(name), nil
		case a == "--version":
			return "version", nil, nil
		case !strings.HasPrefix(a, "-"):
			name = strings.TrimPrefix(name+" "+a, " ")
			args = slices.Concat(args[:i], args[i+1:])
			if len(groupOf(name)) == 0 {
				return name, args, nil
			}
			i--
			continue
		}
		flag, value := cutFlag(args[i])
		f := known.set.Lookup(flag)
		if f == nil {
			return "", nil, known.unknown(args[i])
		}
		if value == nil && !isBool(f) {
			i++
		}
	}
	return cmp.Or(name, "help"), nil, nil
}

// wants checks the number of positional arguments.
func wants(positional []string, names ...string) error {
	switch {
	case len(positional) < len(names):
		return usagef("%s is missing", names[len(positional)])
	case len(positional) > len(names):
		return usagef("%q is one argument too many; put text with spaces in quotes", positional[len(names)])
	}
	return nil
}
