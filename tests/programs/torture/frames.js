// Allocates from known depths of calls: below `depth` calls of `recurse`, blocks of SIZE + depth bytes, often
// enough that the functions are compiled. (Not inlined: each call is a frame.)
'use strict';
const fs = require('fs');
const SIZE = 70000;
let kept;

function recurse(left, depth) {
  if (left > 1) return recurse(left - 1, depth) + 1;
  kept = Buffer.allocUnsafeSlow(SIZE + depth);
  return kept.length;
}

function work(rounds) {
  let sum = 0;
  for (let round = 0; round < rounds; round++)
    for (let depth = 1; depth <= 6; depth++) sum += recurse(depth, depth);
  return sum;
}

function rendezvous(line) {
  fs.writeSync(1, line + '\n');
  fs.readSync(0, Buffer.alloc(1));
}

work(3000);
rendezvous('ready');
work(500);
rendezvous('done');
