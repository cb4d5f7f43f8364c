package emu

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"octet/backend/world"
)

// checkCollectives returns the same error on all ranks unless the programs of all processes have
// the same collectives, those that were bound since the last check: MPI compares neither their
// kinds nor their sizes.
func (d *device) checkCollectives() error {
	if d.group.processes == nil {
		return nil
	}
	list := strings.Join(d.collectives, "\n")
	d.collectives = nil
	hash := sha256.Sum256([]byte(list))
	ctx := context.Background()
	hashes, err := d.group.Exchange(ctx, "the comparison of collectives", hash[:])
	if err != nil || !slices.ContainsFunc(hashes, func(h []byte) bool { return !bytes.Equal(h, hashes[0]) }) {
		return err
	}
	text, err := d.group.Exchange(ctx, "the list of collectives", []byte(list))
	if err != nil {
		return err
	}
	for rank, other := range text {
		if cause := firstDifference(string(text[0]), string(other)); cause != "" {
			return &world.Lost{Rank: rank, Cause: cause, Code: world.CodeInput}
		}
	}
	return nil
}

// firstDifference returns how a rank's list of collectives differs from that of rank 0; nothing if
// it does not.
func firstDifference(first, other string) string {
	a, b := append(strings.Split(first, "\n"), "none"), append(strings.Split(other, "\n"), "none")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("its programs differ: collective %d is %s, that of rank 0 is %s", i+1, b[i], a[i])
		}
	}
	return ""
}
