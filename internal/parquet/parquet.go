// Package parquet opens Parquet tables for octet's readers.
package parquet

import (
	"encoding/binary"
	"fmt"
	"io"

	pq "github.com/parquet-go/parquet-go"
)

// Open opens a table of this many bytes, without its page index and Bloom filters, which a reader of
// whole columns does not need. It first checks the size of the footer, for which the library would
// allocate up to 4 GiB. The error completes "the file is". The library panics at some damaged files,
// here and later, so callers recover.
func Open(file io.ReaderAt, size int64) (*pq.File, error) {
	const not = "not a Parquet table, or damaged: "
	var end [8]byte // size of the footer, magic number
	if _, err := file.ReadAt(end[:], max(size-8, 0)); err != nil {
		return nil, fmt.Errorf(not+"%w", io.ErrUnexpectedEOF)
	}
	if footer := binary.LittleEndian.Uint32(end[:]); string(end[4:]) != "PAR1" || int64(footer)+12 > size {
		return nil, fmt.Errorf(not + "it does not end with a footer")
	}
	table, err := pq.OpenFile(file, size, pq.SkipPageIndex(true), pq.SkipBloomFilters(true))
	if err != nil {
		return nil, fmt.Errorf(not+"%w", err)
	}
	return table, nil
}
