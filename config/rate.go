package config

// ParseRate reads a rate as the file has it: a whole number a second, minute or
// hour, such as 100/s.
func ParseRate(text string) (float64, error) { return parseRate(text) }
