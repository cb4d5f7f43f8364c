package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// eachLine calls f with each line that is not blank, without the white space at its ends. name is for
// errors, which have the number of the line.
func eachLine(r io.Reader, name string, f func(line []byte) error) error {
	lines := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("%s: line %d: %w", name, n, err)
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			if err := f(line); err != nil {
				return fmt.Errorf("%s: line %d: %w", name, n, err)
			}
		}
		if err != nil {
			return nil
		}
	}
}
