#!/bin/bash
# The words and phrases of deploy/words.tsv in code, documents and the subjects of new commits. Each match that
# deploy/words-allowed.tsv doesn't allow is printed as `file:line: match: what to write instead`; the exit code is 1 then.
set -euo pipefail
cd "$(dirname "$0")/../.."

# Subjects of commits before this one stay as they are.
checked_since=79992d48

{
  git ls-files -- '*.rs' '*.md' '*.sh' '*.yaml' '*.toml' '*.tsv' '*.c' '*.h' Makefile '*Dockerfile' '*.service' .ci/run
  ! git cat-file -e "$checked_since" 2>/dev/null || echo "git log $checked_since"
} | perl -e '
  use strict;
  my @words = map { chomp; [split /\t/] } grep { !/^(#|$)/ } slurp("deploy/words.tsv");
  my @allowed = map { chomp; my @row = split /\t/; @row == 3 && $row[2] or die "no reason: $_\n"; [qr/$row[0]/, qr/$row[1]/] }
    grep { !/^(#|$)/ } slurp("deploy/words-allowed.tsv");
  for my $row (@words) {
    my ($where, $words) = @$row;
    # A word ends at anything but a letter, and a part of an identifier where the case changes.
    $row->[3] = $where eq "prose" ? qr/\b(?i:$words)\b/
      : $where eq "start" ? qr{^\s*(?://[/!]?|\#)\s*\K(?i:$words)\b}
      : qr/(?:(?<![A-Za-z])|(?<=[a-z0-9])(?=[A-Z]))(?i:$words)(?:(?![A-Za-z])|(?<=[a-z])(?=[A-Z]))/;
  }
  my $any = join "|", map { $_->[1] } @words;
  my $found = 0;
  while (my $path = <STDIN>) {
    chomp $path;
    my @lines = $path =~ /^git log (.*)/ ? `git log --format=%s $1..` : slurp($path);
    my $number = 0;
    for my $line (@lines) {
      $number++;
      next if $line !~ /$any/i;
      for my $row (@words) {
        my ($where, undef, $instead, $pattern) = @$row;
        my $text = $line;
        if ($where eq "ident") {
          next if $path !~ /\.rs$/;
          $text =~ s{"(?:[^"\\]|\\.)*"|//.*}{}g;
        } elsif ($where eq "prose" && $path =~ /\.rs$/) {
          next if $line !~ m{//|"|^\s*[^;{}]*\\?$};
        }
        while ($text =~ /$pattern/g) {
          next if grep { $path =~ $_->[0] && $line =~ $_->[1] } @allowed;
          print "$path:$number: $&: $instead\n";
          $found = 1;
        }
      }
    }
  }
  exit $found;
  sub slurp { open my $file, "<", $_[0] or die "$_[0]: $!\n"; return <$file> }
'
