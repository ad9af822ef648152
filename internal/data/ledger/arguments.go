package ledger

import "slices"

// arguments are those of the script, section by section.
func (l *Ledger) arguments(all []*changes) []any {
	args := []any{l.prefix, len(all)}
	for _, c := range all {
		args = append(args, c.partition, c.from, c.next)
	}
	args = hashes(args, all)
	args = section(args, all, 3, (*changes).runs)
	args = section(args, all, 2, func(c *changes) []string { return c.live })
	args = section(args, all, 3, func(c *changes) []string { return c.pending })
	args = section(args, all, 3, func(c *changes) []string { return c.keys })
	return section(args, all, 3, func(c *changes) []string { return c.made })
}

// hashes are what is written as it stands: how many hashes, then a section of
// each behind its name.
func hashes(args []any, all []*changes) []any {
	rows := map[string][]any{}
	for _, c := range all {
		for at, whole := range c.states {
			rows[at.hash] = append(rows[at.hash], at.member, whole)
		}
		for hash, fields := range c.records {
			for _, f := range fields {
				rows[hash] = append(rows[hash], f)
			}
		}
	}
	args = append(args, len(rows))
	for hash, of := range rows {
		args = append(slices.Grow(args, 2+len(of)), hash, len(of)/2)
		args = append(args, of...)
	}
	return args
}

func section(args []any, all []*changes, width int, of func(*changes) []string) []any {
	first := len(args)
	args = append(args, 0)
	for _, c := range all {
		for _, a := range of(c) {
			args = append(args, a)
		}
	}
	args[first] = (len(args) - first - 1) / width
	return args
}
